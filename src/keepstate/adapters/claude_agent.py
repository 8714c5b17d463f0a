"""`KeepstateSessionStore`: transcripts of the Claude Agent SDK in any store, with a space for each project.

`session/ID` and `subpath/ID/SUBPATH` describe a transcript, and `entry/PART/UUID` is a line of it. A deleted
transcript that is written again has another part, so it begins empty, however long the first one was.
"""

from __future__ import annotations

from typing import Any, Final, Unpack

from keepstate.adapters.base import (
    Adapter,
    AdapterOptions,
    BoundSpace,
    StoreLike,
    outlast_cancellation,
    sweep_numbers,
)
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import CorruptError, MissingExtraError
from keepstate.names import DEFAULT_URL, segment
from keepstate.sessions.namespace import make_deletion

try:
    from claude_agent_sdk import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
        fold_session_summary,
    )
except ImportError as error:
    raise MissingExtraError.of("claude-agent", "claude-agent-sdk") from error

_AT_ONCE: Final = 900
"""Lines written, or transcripts deleted, in one batch, which has room for `limits.BATCH_WRITES`."""
_PARTS: Final = "parts"
"""The number of transcripts that the space has had."""


class KeepstateSessionStore(Adapter):
    """A session store of the Claude Agent SDK, for `ClaudeAgentOptions(session_store=…)`.

    Up to 900 lines are appended in one batch, and more in several. A line with a `uuid` is stored once,
    however often it is sent. A cancelled write is waited for.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        owner: The person whose transcripts these are, if any. `erase` removes all of an owner.
        options: `tenant`, `author`, `encryption`, `record` and `ttl_s`; see `AdapterOptions`. `ttl_s` counts
            from the last append to a transcript.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind = "claude"

    def __init__(
        self,
        store: StoreLike = DEFAULT_URL,
        *,
        owner: str | None = None,
        **options: Unpack[AdapterOptions],
    ) -> None:
        super().__init__(store, **options)
        self._owner = owner
        self.space_name(owner=owner)

    def _project(self, project_key: str) -> BoundSpace:
        return self.space(project_key, owner=self._owner)

    # ---- one transcript

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append lines to a transcript; those whose `uuid` it already has are left out.

        The transcript's time of change grows by each append that adds a line.
        """
        space, lines = self._project(key["project_key"]), list(entries)

        async def append_all() -> None:
            for at in range(0, len(lines), _AT_ONCE):

                async def fn(
                    tx: Transaction, some: list[SessionStoreEntry] = lines[at : at + _AT_ONCE]
                ) -> None:
                    await self._append(tx, key, some)

                await space.transact(fn, message="append")

        await outlast_cancellation(append_all())

    async def _append(self, tx: Transaction, key: SessionKey, lines: list[SessionStoreEntry]) -> None:
        name = _name(key)
        transcript: dict[str, Any] | None = await tx.documents.get(name)
        known: set[str] = set()
        if transcript is None:
            part = await tx.documents.get(_PARTS, 0) + 1
            await tx.documents.put(_PARTS, part)
            transcript = _begin(key, part)
        else:
            part = transcript["part"]
            ids = [_entry_name(part, line["uuid"]) for line in lines if "uuid" in line]
            known = set(await tx.documents.entries(*ids))
        added: list[SessionStoreEntry] = []
        for line in lines:
            number = transcript["count"] + len(added)
            entry = _entry_name(part, line["uuid"]) if "uuid" in line else f"entry/{part}/~{number}"
            if entry not in known:
                known.add(entry)
                added.append(line)
                await tx.documents.put(entry, [number, line])
        if not added:
            return
        now_ms = to_milliseconds(await tx.now())
        transcript["count"] += len(added)
        transcript["mtime"] = max(transcript["mtime"] + 1, now_ms)
        if not key.get("subpath"):
            summary = fold_session_summary(transcript["summary"], key, added)
            transcript["summary"] = {**summary, "mtime": transcript["mtime"]}
        await tx.documents.put(name, transcript, ttl_s=self.ttl_s)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the lines of a transcript in order, or None if there is none."""
        name = _name(key)

        async def work(space: Space) -> list[SessionStoreEntry] | None:
            transcript = await space.documents.get(name)
            while transcript is not None:
                count = transcript["count"]
                listed = space.documents.items(prefix=f"entry/{transcript['part']}/")
                entries = [entry async for _, entry in listed if entry[0] < count]  # without later lines
                if len(entries) == count:
                    return [line for _, line in sorted(entries, key=_number)]
                newer = await space.documents.get(name)
                if newer == transcript:
                    raise CorruptError(f"lines of {name!r} are missing in {space!r}; run `keepstate doctor`")
                transcript = newer  # it was deleted and swept in the meantime
            return None

        return await self._project(key["project_key"]).call(work)

    async def delete(self, key: SessionKey) -> None:
        """End a transcript; without a subpath, those of all subpaths too. `sweep` deletes their lines."""
        name = _name(key)

        async def work(space: Space) -> None:
            if key.get("subpath"):
                await space.documents.delete(name)
                return
            more = True
            while more:

                async def fn(tx: Transaction) -> bool:
                    below = [each async for each in tx.documents.keys(prefix=_below(key), limit=_AT_ONCE)]
                    await make_deletion([name, *below])(tx)
                    return len(below) == _AT_ONCE

                more = await run_in_transaction(space, fn, message="delete", turn="adapter")

        await outlast_cancellation(self._project(key["project_key"]).call(work))

    # ---- listings

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project, with the time of their last change in milliseconds."""
        found = await self._list(project_key, "session/")
        return [{"session_id": each["session"], "mtime": each["mtime"]} for each in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of the sessions of a project, without reading their lines."""
        return [each["summary"] for each in await self._list(project_key, "session/")]

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session, such as those of its subagents."""
        return [each["subpath"] for each in await self._list(key["project_key"], _below(key))]

    async def _list(self, project_key: str, prefix: str) -> list[dict[str, Any]]:
        async def work(space: Space) -> list[dict[str, Any]]:
            return [each async for _, each in space.documents.items(prefix=prefix)]

        return await self._project(project_key).call(work)

    # ---- ends

    async def sweep_space(self, space: Space) -> int:
        """Delete the lines of transcripts that were deleted or have ended, and return their number."""
        # A part that begins after this read is above `last`. One that began before is seen, or has ended.
        last = await space.documents.get(_PARTS, 0)
        live = {
            each["part"]
            for prefix in ("session/", "subpath/")
            async for _, each in space.documents.items(prefix=prefix)
        }
        return await sweep_numbers(space, "entry", last=last, live=live)


def _begin(key: SessionKey, part: int) -> dict[str, Any]:
    subpath = key.get("subpath") or None
    return {
        "session": key["session_id"],
        "subpath": subpath,
        "part": part,
        "count": 0,
        "mtime": 0,
        "summary": None,
    }


def _name(key: SessionKey) -> str:
    subpath = key.get("subpath")
    return f"{_below(key)}{segment(subpath)}" if subpath else f"session/{segment(key['session_id'])}"


def _below(key: SessionKey | SessionListSubkeysKey) -> str:
    return f"subpath/{segment(key['session_id'])}/"


def _entry_name(part: int, uuid: str) -> str:
    return f"entry/{part}/{segment(uuid)}"


def _number(entry: list[Any]) -> int:
    number: int = entry[0]
    return number
