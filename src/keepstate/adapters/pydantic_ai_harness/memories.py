"""`KeepstateMemoryStore`: files that an agent remembers, each changed by compare-and-set.

```
file/<path>                     {"content", "version", "operation_id", "metadata"}: a memory
operation/<id>                  {"fingerprint", "version", "existed"}: the receipt of a change of a memory
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from keepstate.adapters.base import OneSpaceAdapter
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError, MissingExtraError
from keepstate.names import segment

try:
    from pydantic_ai_harness.memory import (
        InMemoryStore,
        MemoryConflictError,
        MemoryFile,
        MemoryMutation,
        MemoryOperation,
        MemoryOperationConflictError,
        MemorySearchResult,
    )
except ImportError as error:
    raise MissingExtraError.of("pydantic-ai-harness", "pydantic-ai-harness") from error

_RECEIPT_S: Final = 30 * 24 * 3600.0
"""The time for which a store of memories knows an operation."""
_PATH_BYTES: Final = 430
_AFTER_EACH: Final = "\U0010ffff"


class KeepstateMemoryStore(OneSpaceAdapter):
    """The `MemoryStore` of the harness on a keepstate store, with metadata and search, for `Memory`.

    A write is a compare-and-set of one file, on every backend and in every process. A change with an
    operation is applied once: its receipt is known for 30 days.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        name: The name of the memories, to keep those of several applications apart.
        owner: The person whose memories these are, if they belong to one. `erase` drops their space.
        options: `tenant`, `author`, `encryption` and `record`; see `RecordingOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind: ClassVar[str] = "pydantic-memory"

    async def read(self, path: str, *, max_chars: int) -> MemoryFile | None:
        """Return a file, cut to a number of characters, or None."""
        await InMemoryStore().read(path, max_chars=max_chars)  # rejects wrong arguments in its own words
        found = await self._bound.call(lambda space: space.documents.get(_file_name(path)))
        if found is None:
            return None
        content: str = found["content"]
        return MemoryFile(
            content=content[:max_chars],
            version=found["version"],
            operation_id=found["operation_id"],
            truncated=len(content) > max_chars,
            metadata=found["metadata"],
        )

    async def get_operation(self, operation: MemoryOperation) -> MemoryMutation | None:
        """Return the result of an operation that was applied, or None.

        Raises:
            MemoryOperationConflictError: The operation was applied with another fingerprint.
        """
        return await self._bound.call(lambda space: _receipt(space, operation))

    async def write(
        self,
        path: str,
        content: str,
        *,
        expected_version: str | None,
        operation: MemoryOperation | None = None,
    ) -> MemoryMutation:
        """Write a file without metadata; see `write_with_metadata`."""
        return await self.write_with_metadata(
            path, content, expected_version=expected_version, metadata=None, operation=operation
        )

    async def write_with_metadata(
        self,
        path: str,
        content: str,
        *,
        expected_version: str | None,
        metadata: Mapping[str, str] | None,
        operation: MemoryOperation | None = None,
    ) -> MemoryMutation:
        """Write a file if it has the expected version, and its metadata with it.

        Raises:
            MemoryConflictError: The file has another version.
            MemoryOperationConflictError: The operation was applied with another fingerprint.
        """
        # Rejects wrong arguments in its own words.
        await InMemoryStore().write_with_metadata(path, content, expected_version=None, metadata=metadata)
        kept = dict(metadata) if metadata else None
        return await self._change(path, expected_version, operation, "written", content, kept)

    async def delete(
        self, path: str, *, expected_version: str | None, operation: MemoryOperation | None = None
    ) -> MemoryMutation:
        """Delete a file if it has the expected version.

        Raises:
            MemoryConflictError: The file has another version.
            MemoryOperationConflictError: The operation was applied with another fingerprint.
        """
        await InMemoryStore().delete(path, expected_version=None)
        return await self._change(path, expected_version, operation, "deleted", None, None)

    async def _change(
        self,
        path: str,
        expected: str | None,
        operation: MemoryOperation | None,
        done: str,
        content: str | None,
        metadata: dict[str, str] | None,
    ) -> MemoryMutation:
        name = _file_name(path)

        async def work(tx: Transaction) -> MemoryMutation:
            if operation is not None and (receipt := await _receipt(tx, operation)) is not None:
                return receipt
            current = await tx.documents.get(name)
            if (None if current is None else current["version"]) != expected:
                raise MemoryConflictError(f"memory path {path!r} changed before it could be {done}")
            version = None
            if content is not None:
                version = tx.clock.random_bytes(12).hex()
                value = {
                    "content": content,
                    "version": version,
                    "operation_id": None if operation is None else operation.id,
                    "metadata": metadata,
                }
                await tx.documents.put(name, value)
            elif current is not None:
                await tx.documents.delete(name)
            mutation = MemoryMutation(version=version, replayed=False, existed=current is not None)
            if operation is not None:
                noted = {
                    "fingerprint": operation.fingerprint,
                    "version": version,
                    "existed": mutation.existed,
                }
                await tx.documents.put(_operation_name(operation), noted, ttl_s=_RECEIPT_S)
            return mutation

        return (await self._bound.transact(work, turn=name)).value

    async def list_paths(self, prefix: str = "", *, limit: int) -> list[str]:
        """Return the paths that begin with a prefix, sorted, at most `limit` of them."""
        await InMemoryStore().list_paths(prefix, limit=limit)  # rejects wrong arguments in its own words

        async def work(space: Space) -> list[str]:
            names = space.documents.keys(prefix=_file_name(prefix), limit=limit)
            return [name.removeprefix(_file_name("")) async for name in names]

        return await self._bound.call(work)

    async def search(
        self,
        prefix: str,
        query: str,
        *,
        limit: int,
        max_files: int,
        max_chars: int,
        max_file_chars: int,
    ) -> MemorySearchResult:
        """Search the files directly under a prefix by words, as the harness's own stores do."""
        bounds = {
            "limit": limit,
            "max_files": max_files,
            "max_chars": max_chars,
            "max_file_chars": max_file_chars,
        }
        if min(bounds.values()) <= 0 or not query.split():
            return await InMemoryStore().search(prefix, query, **bounds)
        found = await self._bound.call(lambda space: _files_under(space, prefix, max_files + 1))
        # One character more tells that a file was cut.
        files = {path: content[: max_file_chars + 1] for path, content in found.items()}
        return await InMemoryStore(files).search(prefix, query, **bounds)


async def _files_under(space: Space, prefix: str, limit: int) -> dict[str, str]:
    """Return the files directly under a prefix, sorted by path, without reading deeper ones."""
    begin = _file_name(prefix)
    found: dict[str, str] = {}
    after: str | None = None
    while True:
        async for name, value in space.documents.items(prefix=begin, after=after, limit=limit):
            folder, deeper, _ = name.removeprefix(begin).partition("/")
            if deeper:
                after = f"{begin}{folder}/{_AFTER_EACH}"
                break
            found[name.removeprefix(_file_name(""))] = value["content"]
            if len(found) == limit:
                return found
        else:
            return found


async def _receipt(target: Space | Transaction, operation: MemoryOperation) -> MemoryMutation | None:
    found = await target.documents.get(_operation_name(operation))
    if found is None:
        return None
    if found["fingerprint"] != operation.fingerprint:
        raise MemoryOperationConflictError(
            f"operation id {operation.id!r} was reused with different arguments"
        )
    return MemoryMutation(version=found["version"], replayed=True, existed=found["existed"])


def _file_name(path: str) -> str:
    if len(path) > _PATH_BYTES:
        raise InvalidError(f"a path has {len(path)} characters; a memory has at most {_PATH_BYTES}")
    return f"file/{path}"


def _operation_name(operation: MemoryOperation) -> str:
    return f"operation/{segment(operation.id)}"
