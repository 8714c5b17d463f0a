"""`KeepstatePushConfigs`: the push configurations of tasks, in a space for each task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from keepstate.adapters.a2a.pieces import dump
from keepstate.adapters.base import StoreAdapter, StoreLike, StoreOptions, outlast_cancellation
from keepstate.engine.space.erasure import Erased
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import MissingExtraError
from keepstate.names import DEFAULT_URL, segment

if TYPE_CHECKING:
    from a2a.server.context import ServerCallContext

try:
    from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
    from a2a.server.tasks.push_notification_config_store import (
        PushNotificationConfigStore,
        normalize_push_notification_config,
    )
    from a2a.types import a2a_pb2
except ImportError as error:
    raise MissingExtraError.of("a2a", "a2a-sdk 1.3") from error


class KeepstatePushConfigs(StoreAdapter, PushNotificationConfigStore):
    """The push configurations of tasks, for `push_config_store=` of a request handler.

    They contain tokens of the receivers: give `encryption` to store them encrypted.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        owner_resolver: The function that names the owner of a call.
        options: `tenant`, `author` and `encryption`; see `StoreOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind = "a2a-push"

    def __init__(
        self,
        store: StoreLike = DEFAULT_URL,
        *,
        owner_resolver: OwnerResolver = resolve_user_scope,
        **options: Unpack[StoreOptions],
    ) -> None:
        super().__init__(store, **options)
        self._owner_of = owner_resolver

    async def set_info(
        self,
        task_id: str,
        notification_config: a2a_pb2.TaskPushNotificationConfig,
        context: ServerCallContext,
    ) -> a2a_pb2.TaskPushNotificationConfig:
        """Store a configuration of a task, in place of one of the same id, and return it as stored."""
        config = normalize_push_notification_config(task_id, notification_config)
        owner = self._owner_of(context)
        key = f"{_owner_prefix(owner)}{segment(config.id)}"

        async def work(ks: Keepstate) -> None:
            if owner:  # first, so that an erasure finds every task of the owner
                await ks.space(self.space_name("tasks", owner=owner)).documents.put(segment(task_id), task_id)
            await ks.space(self.space_name(task_id)).documents.put(key, dump(config))

        await outlast_cancellation(self.call(work))
        return config

    async def get_info(
        self, task_id: str, context: ServerCallContext
    ) -> list[a2a_pb2.TaskPushNotificationConfig]:
        """Return the configurations of a task that the owner of the call has set."""
        return await self._read(task_id, _owner_prefix(self._owner_of(context)))

    async def get_info_for_dispatch(self, task_id: str) -> list[a2a_pb2.TaskPushNotificationConfig]:
        """Return the configurations of a task, of all owners."""
        return await self._read(task_id, "")

    async def _read(self, task_id: str, prefix: str) -> list[a2a_pb2.TaskPushNotificationConfig]:
        async def work(space: Space) -> list[a2a_pb2.TaskPushNotificationConfig]:
            listed = space.documents.items(prefix=prefix)
            return [a2a_pb2.TaskPushNotificationConfig.FromString(each) async for _, each in listed]

        return await self.space(task_id).call(work)

    async def delete_info(
        self, task_id: str, context: ServerCallContext, config_id: str | None = None
    ) -> None:
        """Delete a configuration of the owner of the call, or all of them that the task has."""
        prefix = _owner_prefix(self._owner_of(context))

        async def work(space: Space) -> None:
            if config_id is None:
                await space.documents.delete_all(prefix)
            else:
                await space.documents.delete(f"{prefix}{segment(config_id)}")

        await outlast_cancellation(self.space(task_id).call(work))

    async def erase(self, owner: str) -> Erased:
        """Erase all configurations of an owner; see `StoreAdapter.erase`."""
        tasks = self.space_name("tasks", owner=owner)

        async def work(ks: Keepstate) -> None:
            for task_id in [id async for _, id in ks.space(tasks).documents.items()]:
                await ks.space(self.space_name(task_id)).expunge(_owner_prefix(owner))

        await self.call(work)
        return await super().erase(owner)


def _owner_prefix(owner: str) -> str:
    return f"{segment(owner)}/"
