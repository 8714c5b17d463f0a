"""Artifacts have versions, belong to a session or a user, and refer to one another within these bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.artifacts import artifact_util
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types

from keepstate.adapters.google_adk import KeepstateArtifactService

Who = dict[str, Any]


def data(content: bytes, mime_type: str = "application/pdf") -> types.Part:
    return types.Part.from_bytes(data=content, mime_type=mime_type)


def reference(
    filename: str, version: int = 0, *, app: str = "shop", user: str = "ann", id: str | None = "1"
) -> types.Part:
    uri = artifact_util.get_artifact_uri(app, user, filename, version, id)
    return types.Part(file_data=types.FileData(file_uri=uri, mime_type="text/plain"))


async def test_versions_are_numbered_and_come_back(any_url: str, who: Who) -> None:
    key = {**who, "session_id": "1", "filename": "a/b.pdf"}
    parts = [
        data(b"\0\xff" * 1_000),
        types.Part(text="naïve 🦜"),
        types.Part(file_data=types.FileData(file_uri="gs://bucket/x", mime_type="image/png")),
        data(b""),
    ]
    async with KeepstateArtifactService(any_url) as artifacts:
        numbers = [await artifacts.save_artifact(**key, artifact=part) for part in parts]
        told = await artifacts.list_artifact_versions(**key)

        assert numbers == await artifacts.list_versions(**key) == [0, 1, 2, 3]
        assert [await artifacts.load_artifact(**key, version=n) for n in numbers] == parts
        assert await artifacts.load_artifact(**key) == parts[-1]
        assert [each.mime_type for each in told] == [
            "application/pdf",
            "text/plain",
            "image/png",
            "application/pdf",
        ]
        assert await artifacts.get_artifact_version(**key) == told[-1]
        assert await artifacts.get_artifact_version(**key, version=1) == told[1]
        for version in (-1, 4):
            assert await artifacts.load_artifact(**key, version=version) is None
            assert await artifacts.get_artifact_version(**key, version=version) is None
        await artifacts.delete_artifact(**key)
        await artifacts.delete_artifact(**key)
        assert (await artifacts.list_versions(**key), await artifacts.load_artifact(**key)) == ([], None)
        assert await artifacts.list_artifact_versions(**key) == []
        assert await artifacts.save_artifact(**key, artifact=parts[1]) == 0
        assert await artifacts.load_artifact(**key) == parts[1]
        assert [each.mime_type for each in await artifacts.list_artifact_versions(**key)] == ["text/plain"]


async def test_writers_of_one_file_get_different_versions(shared_url: str, who: Who) -> None:
    key = {**who, "session_id": "1", "filename": "x"}
    async with KeepstateArtifactService(shared_url) as one, KeepstateArtifactService(shared_url) as two:
        numbers = await asyncio.gather(
            *(
                service.save_artifact(**key, artifact=types.Part(text=f"{n}"))
                for n in range(10)
                for service in (one, two)
            )
        )

        assert sorted(numbers) == list(range(20))


async def test_files_belong_to_a_session_or_to_its_user(any_url: str, who: Who) -> None:
    async with KeepstateArtifactService(any_url) as artifacts:
        for id, name in [("1", "b"), ("1", "a"), ("2", "c"), (None, "user:z"), ("2", "user:y")]:
            await artifacts.save_artifact(
                **who, session_id=id, filename=name, artifact={"text": name}, custom_metadata={"of": id}
            )
        of_user = await artifacts.get_artifact_version(**who, filename="user:z", session_id="1")

        assert await artifacts.list_artifact_keys(**who, session_id="1") == ["a", "b", "user:y", "user:z"]
        assert await artifacts.list_artifact_keys(**who) == ["user:y", "user:z"]
        assert await artifacts.list_artifact_keys(app_name="shop", user_id="bob", session_id="1") == []
        assert await artifacts.list_artifact_keys(app_name="bank", user_id="ann", session_id="1") == []
        part = await artifacts.load_artifact(**who, session_id="3", filename="user:y")
        assert part == types.Part(text="user:y")
        assert of_user is not None
        assert of_user.custom_metadata == {"of": None}
        assert of_user.canonical_uri == artifact_util.get_artifact_uri("shop", "ann", "user:z", 0)
        with pytest.raises(InputValidationError, match="Session ID"):
            await artifacts.load_artifact(**who, filename="a")


async def test_references_are_followed_up_to_five_deep(who: Who) -> None:
    key = {**who, "session_id": "1"}
    async with KeepstateArtifactService("memory://") as artifacts:
        await artifacts.save_artifact(**key, filename="0", artifact=data(b"the end"))
        await artifacts.save_artifact(**key, filename="0", artifact=data(b"a later version"))
        for n in range(1, 7):
            await artifacts.save_artifact(**key, filename=f"{n}", artifact=reference(f"{n - 1}"))
        await artifacts.save_artifact(**who, filename="user:x", artifact=reference("user:x", id=None))

        assert await artifacts.load_artifact(**key, filename="5") == data(b"the end")
        for endless in ("6", "user:x"):
            with pytest.raises(InputValidationError, match="depth"):
                await artifacts.load_artifact(**key, filename=endless)
        told = await artifacts.get_artifact_version(**key, filename="5")
        assert told is not None
        assert told.mime_type is None
        await artifacts.delete_artifact(**key, filename="0")
        assert await artifacts.load_artifact(**key, filename="5") is None


async def test_a_reference_stays_within_its_app_user_and_session(who: Who) -> None:
    key = {**who, "session_id": "1", "filename": "x"}
    async with KeepstateArtifactService("memory://") as artifacts:
        outside = [
            reference("x", app="bank"),
            reference("x", user="bob"),
            reference("x", id="2"),
            types.Part(file_data=types.FileData(file_uri="artifact://nonsense", mime_type="x")),
            types.Part(),
        ]
        for part in outside:
            with pytest.raises(InputValidationError):
                await artifacts.save_artifact(**key, artifact=part)
        await artifacts.save_artifact(**key, artifact=reference("user:y", id=None))
        await artifacts.save_artifact(**who, filename="user:y", artifact=data(b"of the user"))

        assert await artifacts.load_artifact(**key) == data(b"of the user")
        # A file of the user was saved in a session, and refers to a file of that session.
        await artifacts.save_artifact(**{**key, "filename": "user:y"}, artifact=reference("x"))
        with pytest.raises(InputValidationError):
            await artifacts.load_artifact(**who, filename="user:y")


@pytest.mark.parametrize("id", ["", " ", "..", "a/../b", "/etc", "\\x", "C:x", "a\0", "x/users/y"])
async def test_ids_that_are_no_segments_of_a_path_are_refused(id: str, who: Who) -> None:
    async with KeepstateArtifactService("memory://") as artifacts:
        for wrong in ({"app_name": id}, {"user_id": id}, {"session_id": id}):
            key = {**who, "session_id": "1", **wrong}
            with pytest.raises(InputValidationError):
                await artifacts.list_artifact_keys(**key)
            for call in (
                artifacts.load_artifact,
                artifacts.delete_artifact,
                artifacts.list_versions,
                artifacts.get_artifact_version,
            ):
                with pytest.raises(InputValidationError):
                    await call(**key, filename="x")
            with pytest.raises(InputValidationError):
                await artifacts.save_artifact(**key, filename="x", artifact=types.Part(text="x"))


async def test_what_a_rewind_removed_is_absent(who: Who) -> None:
    key = {**who, "session_id": "1", "filename": "x"}
    async with KeepstateArtifactService("memory://") as artifacts:
        await artifacts.save_artifact(**key, artifact=types.Part(text="x"))
        await artifacts.save_artifact(**key, artifact=data(b"", "application/octet-stream"))

        assert await artifacts.load_artifact(**key) is None
        assert await artifacts.load_artifact(**key, version=0) == types.Part(text="x")


async def test_an_artifact_of_several_megabytes_comes_back(any_url: str, who: Who) -> None:
    key = {**who, "session_id": "1", "filename": "x"}
    large = bytes(range(256)) * (5 << 12)
    async with KeepstateArtifactService(any_url) as artifacts:
        await artifacts.save_artifact(**key, artifact=data(large))
        loaded = await artifacts.load_artifact(**key)

    assert loaded == data(large)


async def test_versions_that_an_interrupted_deletion_left_are_not_of_the_next_file(who: Who) -> None:
    key = {**who, "session_id": "1", "filename": "x"}
    async with KeepstateArtifactService("memory://") as artifacts:
        for text in ("0", "1"):
            await artifacts.save_artifact(**key, artifact=types.Part(text=text))
        space = artifacts.space("shop", "1", owner="ann")
        await space.transact(lambda tx: tx.documents.delete("file/x"))  # its first batch
        await artifacts.save_artifact(**key, artifact=types.Part(text="new"))

        assert await artifacts.load_artifact(**key, version=1) is None
        assert len(await artifacts.list_artifact_versions(**key)) == 1
