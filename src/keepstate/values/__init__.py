"""WHAT is stored? Keys, values and their bytes, names by content, and the limits of all of them.

Invariant: nothing here does I/O, reads a clock, waits or starts a thread; the same value gives the same bytes
everywhere and for ever.

To add a type that comes back as it was: give it a tag in `types`, its two conversions beside those of its
kin, and a vector in `tests/formats`. To add a class of your own, `register` it.
"""
