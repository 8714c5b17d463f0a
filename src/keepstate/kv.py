"""`KVStore`: what a key-value store of one's own must do."""

from keepstate.workspace.kv import KVStore

__all__ = ["KVStore"]
