"""Blocking twins of `keepstate.engine.queue.schedules`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from keepstate._finish import finish
from keepstate.engine.kernel.positions import Page
from keepstate.engine.queue import schedules as engine
from keepstate.engine.queue.schedules import Schedule
from keepstate.engine.queue.tasks import Put
from keepstate.engine.queue.ticks import Missed, Overlap
from keepstate.sync.twin import Twin


class Schedules(Twin[engine.Schedules]):
    """The schedules of a space, or of a transaction on it."""

    def put(
        self,
        name: str,
        *,
        cron: str | None = None,
        every_s: float | None = None,
        zone: str = "UTC",
        kind: str = "",
        payload: object = None,
        key: str | None = None,
        jitter_s: float = 0,
        missed: Missed = "last",
        missed_within_s: float = 3600,
        overlap: Overlap = "skip",
        until: datetime | None = None,
    ) -> Schedule:
        """Add a schedule, or change the one of this name. Putting the same one again writes nothing.

        Each tick becomes the task `schedule/<name>/<instant>`. A changed schedule stays paused if it was, and
        continues after its last tick. If only its payload, kind, key or rules change, the time of the next
        tick stays.

        Args:
            name: 1 to 160 bytes of UTF-8.
            cron: Five fields: minute, hour, day of the month, month, day of the week. A wall time that the
                zone skips runs at the end of the gap, one that comes twice runs once, the first time.
            every_s: Seconds between two ticks, at least 1; the first one comes so long after the put. Give
                this or `cron`.
            zone: The time zone of `cron`, such as `Europe/Berlin`.
            kind: The kind of the tasks.
            payload: The payload of the tasks; any value that the codec stores.
            key: The key of the tasks.
            jitter_s: Delay each tick by up to this many seconds, at most a day. The delay follows from space,
                name and instant.
            missed: The rule for ticks that no worker put in time: `last` puts the last one, `all` puts each,
                up to the last 1,000, and `skip` puts none that is over a minute late.
            missed_within_s: With `last` and `all`, how late a tick may be.
            overlap: The rule for a tick while the task of an earlier one has not ended: `skip` it, `queue` it
                until then, at most 100 of them, or `allow` both to run.
            until: The time of the last tick at the latest.

        Raises:
            InvalidError: The expression or the zone is wrong, or no time ever matches.
            MissingExtraError: This machine has no time zones.
        """
        return finish(
            self._inner.put(
                name,
                cron=cron,
                every_s=every_s,
                zone=zone,
                kind=kind,
                payload=payload,
                key=key,
                jitter_s=jitter_s,
                missed=missed,
                missed_within_s=missed_within_s,
                overlap=overlap,
                until=until,
            )
        )

    def delete(self, name: str) -> bool:
        """Delete a schedule, and return whether it existed. Its tasks remain."""
        return finish(self._inner.delete(name))

    def pause(self, name: str) -> bool:
        """Put no more tasks until `resume`. Return False if the schedule was paused already.

        Raises:
            NotFoundError: No schedule has this name.
        """
        return finish(self._inner.pause(name))

    def resume(self, name: str) -> bool:
        """Put tasks again. Return False if the schedule was not paused.

        Ticks of the pause are not missed: the next one is the first after this call.

        Raises:
            NotFoundError: No schedule has this name.
        """
        return finish(self._inner.resume(name))

    def run_now(self, name: str) -> Put:
        """Put a task of the schedule now, also if it is paused or its last task has not ended.

        The time of the next tick stays. The task counts for `overlap`.

        Raises:
            NotFoundError: No schedule has this name.
        """
        return finish(self._inner.run_now(name))

    def tick(self) -> int:
        """Put the tasks of due schedules, of at most 32 at a time, and return their number.

        Workers call it themselves: `claim`, and what is built on it. If nothing is due, it costs one read.
        """
        return finish(self._inner.tick())

    def get(self, name: str, *, payload: bool = False) -> Schedule | None:
        """Return a schedule, or None if none has this name; with `payload=True`, including its payload."""
        return finish(self._inner.get(name, payload=payload))

    def list(self, *, after: str | None = None, limit: int = 100) -> Page[Schedule]:
        """Return one page of the schedules in the order of their names, without payloads.

        Args:
            after: Only schedules after the page with this cursor as `next`.
            limit: The largest number of schedules to return.
        """
        return finish(self._inner.list(after=after, limit=limit))

    def next(self, name: str, n: int = 5) -> Sequence[datetime]:
        """Return the times of the next ticks, in UTC and without jitter; those of a paused schedule too.

        Args:
            name: The schedule.
            n: The number of times, at most 1,000. There are fewer if it ends before.

        Raises:
            NotFoundError: No schedule has this name.
        """
        return finish(self._inner.next(name, n))
