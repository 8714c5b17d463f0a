"""WHO can read it? A store whose values nobody reads, changes or moves without a key.

`ring` holds the keys, `sealing` turns one value into sealed bytes and back, `store` does it for a whole
store, `rotation` seals again what older keys had sealed.

Invariant: what leaves `store` was sealed at the very place it is read from, or `CorruptError` is raised.

To add a kind of seal: a first byte in `sealing`, which is never given a second meaning.
"""

from keepstate.stores.wrappers.encrypted.ring import KeyRing
from keepstate.stores.wrappers.encrypted.store import EncryptedStore

__all__ = ["EncryptedStore", "KeyRing"]
