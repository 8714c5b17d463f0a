"""What a type checker knows of the blocking twins. It is checked, and never run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, assert_type

import keepstate
from keepstate import Claim, DocumentEntry, Event
from keepstate.sync import Document, Keepstate, Lease, Space, Task, Transaction


@dataclass
class Profile:
    name: str


def handles() -> None:
    with keepstate.sync.open("memory://", author="me") as ks:
        assert_type(ks, Keepstate)
        assert_type(ks.tenant_id, str | None)
        assert_type(ks.tenant("acme"), Keepstate)
        assert_type(ks.space("s"), Space)
        assert_type(ks.spaces(), Iterator[str])
    assert_type(keepstate.sync.open(), Keepstate)


def documents(space: Space) -> None:
    assert_type(space.documents.get("k"), Any)
    assert_type(space.documents.get("k", 0), Any)
    assert_type(space.documents.get("k", type=Profile), Profile | None)
    assert_type(space.documents.get("k", Profile("new"), type=Profile), Profile)
    assert_type(space.documents.entry("k"), DocumentEntry[Any] | None)
    assert_type(space.documents.entry("k", type=Profile), DocumentEntry[Profile] | None)
    assert_type(space.documents.put("k", object()), int)
    assert_type(space.documents.delete("k"), bool)
    assert_type(space.documents.items(), Iterator[tuple[str, Any]])


def typed_documents(space: Space) -> None:
    profile = space.documents.document("profile", Profile)
    assert_type(profile, Document[Profile])
    assert_type(profile.get(), Profile | None)
    assert_type(profile.get(Profile("new")), Profile)
    assert_type(profile.entry(), DocumentEntry[Profile] | None)
    assert_type(profile.update(renamed, default=Profile("new")), Profile)
    profile.update(renamed_later)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    profile.put("no profile")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def renamed(profile: Profile) -> Profile:
    return Profile(profile.name.title())


async def renamed_later(profile: Profile) -> Profile:
    return renamed(profile)


def transactions(space: Space, lease: Lease, asynchronous: keepstate.Lease) -> None:
    with space.transaction(lease=lease) as tx:
        assert_type(tx, Transaction)
        assert_type(tx.documents.get("k", type=int), int | None)
    assert_type(space.transact(counted), int)
    with space.transaction(lease=asynchronous):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        pass


def counted(tx: Transaction) -> int:
    return tx.revision


def parts(space: Space) -> None:
    assert_type(space.events.append("a", "b"), int)
    assert_type(space.events.read(), list[Event])
    assert_type(space.events.stream("s").follow(), Iterator[Event])
    assert_type(space.queue.claim("w", lease_s=1), list[Task])
    assert_type(space.queue.claim("w", lease_s=1)[0].payload, Any)
    assert_type(space.queue.work("w"), Iterator[Task])
    space.queue.complete(Claim("id", 1), "result")
    with space.leases.acquire("l", 1) as lease:
        assert_type(lease, Lease)
        assert_type(lease.token, int)
    with space.documents.watch() as changes:
        for change in changes:
            assert_type(change, keepstate.DocumentChange)
