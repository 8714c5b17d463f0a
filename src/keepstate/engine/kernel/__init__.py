"""WHAT is every part of a space made of? Keys, the unit of work, executors, positions and large values.

Use a module from here to build a part. A finished part (documents, events, a queue) has its own folder. Not
an API boundary. Invariant: nothing here knows which parts exist, except the table of key prefixes in
`layout`.
"""
