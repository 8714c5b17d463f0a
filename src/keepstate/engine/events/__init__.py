"""HOW is kept what happened? Streams of events, the states folded from them, and their truncation.

Take `events` for facts that are only added, `documents` for values that are replaced. Not an API boundary:
`Space.events` and `EventStream` are.
"""
