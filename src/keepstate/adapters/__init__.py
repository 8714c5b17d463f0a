"""WHICH framework keeps its state here? One file or folder for each, the only importer of that framework.

Not an API boundary: the framework's own file or folder is. Without a framework, take `keepstate.sessions`.

Invariant: an adapter fulfils a framework's interface with the parts of spaces, and nothing else imports it,
so the framework is an optional dependency. To add one, name its extra in `pyproject.toml`, and forbid its
packages elsewhere in the import contracts.
"""
