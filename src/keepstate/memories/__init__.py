"""WHAT does an agent know? Facts with their sources, which are replaced and never overwritten.

A memory is a document, its vector another one, so both have the guarantees of the space. The indexes that
search by words and by meaning are derived from these documents in memory. Invariant: a search returns only
memories that it has just read from the space.
"""

from keepstate.memories.embedder import VectorIndex
from keepstate.memories.memories import Memories
from keepstate.memories.memory import Hit, Memory

__all__ = ["Hit", "Memories", "Memory", "VectorIndex"]
