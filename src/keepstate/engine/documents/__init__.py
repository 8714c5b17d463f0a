"""HOW are named values stored? Documents with versions, and watches on them.

Use `documents` for a value that is replaced or updated by name, `events` for facts that are only appended,
and `history` to read earlier states. Not an API boundary: `Space.documents` is.
"""
