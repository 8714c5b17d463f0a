"""WHICH framework keeps its state here? One file or folder each, the only place that imports it.

Invariant: an adapter keeps a framework's promises by the parts of spaces, and nothing else imports it; who
does not use the framework need not have it.

To add one: name its extra in `pyproject.toml`, and forbid its packages elsewhere in the import contracts.
"""
