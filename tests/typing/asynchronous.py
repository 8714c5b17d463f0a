"""What a type checker knows of the asynchronous handles. It is checked, and never run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, assert_type

import keepstate
from keepstate import Document, DocumentEntry, Event, Lease, Space, Task, Transaction, sync


@dataclass
class Profile:
    name: str


async def handles() -> None:
    async with keepstate.open("memory://", author="me") as ks:
        assert_type(ks, keepstate.Keepstate)
        assert_type(ks.space("s"), Space)
        assert_type(ks.spaces(), AsyncIterator[str])
        assert_type(sync.of(ks), sync.Keepstate)
        assert_type(sync.of(ks), sync.Keepstate)
    assert_type(await keepstate.open(), keepstate.Keepstate)


async def tasks(typed: Task[Profile], plain: Task) -> None:
    assert_type(typed.payload, Profile)
    assert_type(plain.payload, Any)
    assert_type(plain, Task[Any])
    assert_type(await typed.step("rename", renamed, typed.payload), Profile)
    assert_type(await typed.step("later", renamed_later, typed.payload), Profile)


async def documents(space: Space) -> None:
    assert_type(await space.documents.get("k"), Any)
    assert_type(await space.documents.get("k", 0), Any)
    assert_type(await space.documents.get("k", type=Profile), Profile | None)
    assert_type(await space.documents.get("k", Profile("new"), type=Profile), Profile)
    assert_type(await space.documents.entry("k"), DocumentEntry[Any] | None)
    assert_type(await space.documents.entry("k", type=Profile), DocumentEntry[Profile] | None)
    assert_type(await space.documents.put("k", object()), int)
    assert_type(await space.documents.delete("k"), bool)
    assert_type(space.documents.items(), AsyncIterator[tuple[str, Any]])


async def typed_documents(space: Space) -> None:
    profile = space.documents.document("profile", Profile)
    assert_type(profile, Document[Profile])
    assert_type(await profile.get(), Profile | None)
    assert_type(await profile.get(Profile("new")), Profile)
    assert_type(await profile.entry(), DocumentEntry[Profile] | None)
    assert_type(await profile.update(renamed, default=Profile("new")), Profile)
    assert_type(await profile.update(renamed_later), Profile)
    await profile.put("no profile")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def renamed(profile: Profile) -> Profile:
    return Profile(profile.name.title())


async def renamed_later(profile: Profile) -> Profile:
    return renamed(profile)


async def transactions(space: Space, lease: Lease) -> None:
    async with space.transaction(lease=lease) as tx:
        assert_type(tx, Transaction)
        assert_type(await tx.documents.get("k", type=int), int | None)
    assert_type(await space.transact(counted), int)
    assert_type(await space.transact(counted_later), int)


def counted(tx: Transaction) -> int:
    return tx.revision


async def counted_later(tx: Transaction) -> int:
    return counted(tx)


async def parts(space: Space) -> None:
    assert_type(await space.events.append("a", "b"), int)
    assert_type(await space.events.read(), list[Event])
    assert_type(space.events.stream("s").follow(), AsyncIterator[Event])
    assert_type(await space.queue.claim("w", lease_s=1), list[Task])
    assert_type(space.queue.work("w"), AsyncIterator[Task])
    async with await space.leases.acquire("l", 1) as lease:
        assert_type(lease, Lease)
        assert_type(lease.token, int)
    async with space.documents.watch() as changes:
        async for change in changes:
            assert_type(change, keepstate.DocumentChange)
