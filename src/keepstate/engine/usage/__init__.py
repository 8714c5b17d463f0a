"""HOW much was used? Usage of models: tokens, calls and money, counted once, under ceilings.

Use a budget for what model calls may cost, and a quota for what a tenant may store. Not an API boundary:
`Space.usage` is.
"""
