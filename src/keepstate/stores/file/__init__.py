"""WHERE is it kept? In memory, with a journal file that survives a power cut, for one process.

Invariant: readers see only changes that are durable in the journal, and a journal that cannot be parsed is
not changed.

To add a kind of journal item: a struct in `items`, its JSON form in `json_form`, and its replay in `state`.
Not an API boundary: open a store by its URL.
"""

from keepstate.stores.file.store import FileStore as FileStore

__all__ = ["FileStore"]
