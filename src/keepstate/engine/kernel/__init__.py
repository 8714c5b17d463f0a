"""What is every part of a space made of? Keys, the unit of work, scopes, positions and large values.

Take a module from here to build a part; a finished part (documents, events, a queue) has its own room. Not an
API boundary. Invariant: nothing here knows which parts exist, except the table of key prefixes in `layout`.
"""
