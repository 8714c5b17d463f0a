"""`KVStore`, the base class of your own key-value store."""

from keepstate.stores.kv import KVStore

__all__ = ["KVStore"]
