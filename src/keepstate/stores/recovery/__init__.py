"""WHAT can still be read of a damaged file? Readers that use neither SQLite nor the journal's own code paths.

Take `stores.recovery` to get records out of damaged bytes; `engine.repair` judges them and writes a new
space. Used by the `repair` command only. Not an API boundary.
"""
