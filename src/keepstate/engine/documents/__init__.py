"""HOW are named values kept? Documents with versions, and watches on them.

Take `documents` for a value that is replaced or updated by name, `events` for facts that are only added, and
`history` to read earlier states. Not an API boundary: `Space.documents` is.
"""
