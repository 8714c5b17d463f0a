"""`KeepstateArtifactService`: versions of files of sessions and users, in a space for each session and user.

In the space of a session, or of a user for names that begin with `user:`, a file has a head, and for each
version its facts and its content, under a life that begins with the file:

    file/NAME                      {name, life, next}
    fact/NAME/LIFE/VERSION         {version, metadata, at, type}
    content/NAME/LIFE/VERSION      the part
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypedDict

from keepstate.adapters.base import BoundSpace, RecordingAdapter, outlast_cancellation
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import MissingExtraError
from keepstate.names import segment

try:
    from google.adk.artifacts import artifact_util
    from google.adk.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService, ensure_part
    from google.adk.errors.input_validation_error import InputValidationError
    from google.adk.platform import time as platform_time
    from google.adk.platform import uuid as platform_uuid
    from google.genai import types
except ImportError as error:
    raise MissingExtraError.of("google-adk", "google-adk") from error

_OF_USER: Final = "user:"
_REFERENCES: Final = 5
"""References that one load follows."""
_REMOVED: Final = types.Part(inline_data=types.Blob(mime_type="application/octet-stream", data=b""))
"""The content that a rewind of a session saves for a file that did not exist then."""


class _File(TypedDict):
    """The head of a file: its name, its life, and the number of its next version."""

    name: str
    life: str
    next: int


class KeepstateArtifactService(RecordingAdapter, BaseArtifactService):
    """ADK's artifact service on a keepstate store. Give it to a `Runner`.

    A version is one batch, and writers of one file get different versions. Deleting a session does not
    delete its artifacts; `erase` deletes those of a user.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        options: `tenant`, `author`, `encryption` and `record`; see `RecordingOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind = "adk-artifacts"

    # ---- ADK's methods

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Store a new version of a file, and return its number, from 0.

        Args:
            app_name: The name of the app.
            user_id: The user.
            filename: The name. A name that begins with `user:` belongs to all sessions of the user.
            artifact: Data, a text, the URI of a file elsewhere, or a reference to another artifact.
            session_id: The session; not needed for a file of the user.
            custom_metadata: Values for `get_artifact_version`.

        Raises:
            InputValidationError: An id is not a valid segment of a path, the artifact has no content, or a
                reference leads to another app, user or session.
        """
        space = self._space(app_name, user_id, filename, session_id)
        part = ensure_part(artifact)
        _check_part(part, app_name, user_id, session_id)
        facts = {"metadata": custom_metadata or {}, "at": platform_time.get_time(), "type": _type_of(part)}
        content, name, life = _stored(part), segment(filename), platform_uuid.new_uuid()

        async def work(tx: Transaction) -> int:
            found: _File | None = await tx.documents.get(f"file/{name}")
            file = _File(name=filename, life=life, next=0) if found is None else found
            version = file["next"]
            place = _place(file, version)
            await tx.documents.put(f"content/{place}", content)
            await tx.documents.put(f"fact/{place}", {"version": version, **facts})
            await tx.documents.put(f"file/{name}", {**file, "next": version + 1})
            return version

        return (await space.transact(work, message=f"save {filename}")).value

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        """Return a version of a file, by default the last one; None if there is none.

        References are followed, at most five.

        Raises:
            InputValidationError: An id is not a valid segment of a path, or there are more references, or one
                leads to another app, user or session.
        """
        for remaining in range(_REFERENCES, -1, -1):
            space = self._space(app_name, user_id, filename, session_id)
            stored = await self._read(space, "content", filename, version)
            part = None if stored is None else types.Part.model_validate(stored)
            if part is None or not artifact_util.is_artifact_ref(part):
                return None if part == _REMOVED else part
            assert part.file_data is not None
            assert part.file_data.file_uri is not None
            target = artifact_util.resolve_artifact_reference(
                file_uri=part.file_data.file_uri,
                app_name=app_name,
                user_id=user_id,
                session_id=session_id,
                remaining_depth=remaining,
            )
            filename, session_id, version = target.filename, target.session_id, target.version
        raise AssertionError("the last reference is refused")

    async def list_artifact_keys(
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        """Return the names of the files of the user, and of a session, in their order."""

        async def work(target: Space) -> list[str]:
            return [file["name"] async for _, file in target.documents.items(prefix="file/")]

        names = await self._space(app_name, user_id, _OF_USER, None).call(work)
        if session_id is not None:
            names += await self._space(app_name, user_id, "", session_id).call(work)
        return sorted(names)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete a file with all its versions. The next version is number 0 again."""
        space = self._space(app_name, user_id, filename, session_id)
        name = segment(filename)

        async def remove(tx: Transaction) -> _File | None:
            file: _File | None = await tx.documents.get(f"file/{name}")
            if file is not None:
                await tx.documents.delete(f"file/{name}")
            return file

        async def clean(target: Space) -> None:
            assert file is not None
            for kind in ("fact", "content"):
                await target.documents.delete_all(f"{kind}/{name}/{file['life']}/")

        file = (await space.transact(remove, message=f"delete {filename}")).value
        if file is not None:
            await outlast_cancellation(space.call(clean))

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the numbers of all versions of a file."""
        space = self._space(app_name, user_id, filename, session_id)
        file: _File | None = await space.call(
            lambda target: target.documents.get(f"file/{segment(filename)}")
        )
        return [] if file is None else list(range(file["next"]))

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Return the facts of all versions of a file. Their URIs can be used as references."""
        space = self._space(app_name, user_id, filename, session_id)

        async def work(target: Space) -> list[dict[str, Any]]:
            file: _File | None = await target.documents.get(f"file/{segment(filename)}")
            if file is None:
                return []
            prefix = _place(file, 0)[: -len(_number(0))]
            return [facts async for _, facts in target.documents.items(prefix=f"fact/{prefix}")]

        uri = _uris(app_name, user_id, filename, session_id)
        return [_version(facts, uri) for facts in await space.call(work)]

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """Return the facts of a version of a file, by default of the last one; None if there is none."""
        space = self._space(app_name, user_id, filename, session_id)
        facts = await self._read(space, "fact", filename, version)
        return None if facts is None else _version(facts, _uris(app_name, user_id, filename, session_id))

    # ---- places

    def _space(self, app_name: str, user_id: str, filename: str, session_id: str | None) -> BoundSpace:
        """Return the space of a file.

        Raises:
            InputValidationError: An id is missing, or is not a valid segment of a path.
        """
        artifact_util.validate_path_segment(app_name, "app_name")
        artifact_util.validate_path_segment(user_id, "user_id")
        if filename.startswith(_OF_USER):
            return self.space(app_name, owner=user_id)
        if session_id is None:
            raise InputValidationError("Session ID must be provided for session-scoped artifacts.")
        artifact_util.validate_path_segment(session_id, "session_id")
        return self.space(app_name, session_id, owner=user_id)

    async def _read(self, space: BoundSpace, kind: str, filename: str, version: int | None) -> Any:
        """Return the facts or the content of a version of a file, by default of the last one."""

        async def work(target: Space) -> Any:
            file: _File | None = await target.documents.get(f"file/{segment(filename)}")
            number = version if file is None or version is not None else file["next"] - 1
            if file is None or number is None or number < 0:
                return None
            return await target.documents.get(f"{kind}/{_place(file, number)}")

        return await space.call(work)


def _number(version: int) -> str:
    return f"{version:012}"


def _place(file: _File, version: int) -> str:
    return f"{segment(file['name'])}/{file['life']}/{_number(version)}"


def _uris(app_name: str, user_id: str, filename: str, session_id: str | None) -> Callable[[int], str]:
    owner = None if filename.startswith(_OF_USER) else session_id
    return lambda version: artifact_util.get_artifact_uri(app_name, user_id, filename, version, owner)


def _version(facts: dict[str, Any], uri: Callable[[int], str]) -> ArtifactVersion:
    return ArtifactVersion(
        version=facts["version"],
        canonical_uri=uri(facts["version"]),
        custom_metadata=facts["metadata"],
        create_time=facts["at"],
        mime_type=facts["type"],
    )


def _check_part(part: types.Part, app_name: str, user_id: str, session_id: str | None) -> None:
    """Raise `InputValidationError` if a part has no content, or refers to what it may not."""
    if part.inline_data is None and part.text is None and part.file_data is None:
        raise InputValidationError("Not supported artifact type.")
    if part.file_data is None or not artifact_util.is_artifact_ref(part):
        return
    target = artifact_util.parse_artifact_uri(part.file_data.file_uri or "")
    if target is None:
        raise InputValidationError(f"Invalid artifact reference URI: {part.file_data.file_uri}")
    artifact_util.validate_artifact_reference_scope(
        app_name=app_name, user_id=user_id, session_id=session_id, parsed_uri=target
    )


def _stored(part: types.Part) -> dict[str, Any]:
    """Return a part as plain values; its data stay bytes, so that they are not a third longer."""
    stored = part.model_dump(mode="json", exclude_none=True)
    if part.inline_data is not None and part.inline_data.data is not None:
        stored["inline_data"]["data"] = part.inline_data.data
    return stored


def _type_of(part: types.Part) -> str | None:
    """Return the MIME type of a part; None for a reference, whose target has one."""
    if part.inline_data is not None:
        return part.inline_data.mime_type
    if part.text is not None:
        return "text/plain"
    return None if part.file_data is None or artifact_util.is_artifact_ref(part) else part.file_data.mime_type
