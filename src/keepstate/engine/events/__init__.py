"""HOW are facts recorded? Streams of events, the states folded from them, and their truncation.

Use `events` for facts that are only appended, `documents` for values that are replaced. Not an API boundary:
`Space.events` and `EventStream` are.
"""
