"""IS a space what was written, and what is left of a damaged one? Verification and restoration.

Take `repair` to judge or save the records of a space; `stores.recovery` reads the bytes of a damaged file.
Not an API boundary: `keepstate doctor --verify` and `keepstate repair` are.
"""
