"""WHERE is it kept? In memory, with a journal file that survives a power cut, for one process.

Invariant: nobody reads what the journal does not hold for good, and a journal that is not understood is not
touched.

To add what a journal holds: a shape in `items` and its JSON twin in `json_form`; `state` replays it.
"""

from keepstate.stores.file.store import FileStore as FileStore

__all__ = ["FileStore"]
