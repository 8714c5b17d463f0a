"""WHAT is stored? Keys, values and their bytes, names by content, comparison and merging, and the limits.

Invariant: nothing here does I/O, reads a clock, waits or starts a thread. The same value gives the same bytes
on every machine and in every version.

To add a type: give it a tag in `types`, its two conversions next to those of similar types, and a vector in
`tests/formats`. To store a class of your own, `register` it.
"""
