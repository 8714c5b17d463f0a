"""What memories do, whatever store they are in."""

from tests.contracts.memories.memories import MemoryContract

__all__ = ["MemoryContract"]
