"""The dials of a world: each seed has its own; some worlds are calm, some lose nearly all."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Dials:
    """Shares of calls with a fault (0 to 1), and durations.

    Attributes:
        refused: The store is away, and certainly nothing was applied.
        lost_request: The request never arrives, and the client cannot know.
        lost_reply: The call applied, and its answer was lost.
        late: The client gives up on it, and it arrives afterwards.
        repeated: It arrives, is answered, and arrives again.
        split: Only some batches of a flush are answered.
        failed_read: A read, scan or log page fails.
        delayed: It takes a while to arrive, or to be answered.
        longest_delay_s: The longest delay.
        lost_hint: A hint of a change is lost.
        cancelled: The caller gives up in the middle of an operation.
        paused: A process pauses between two steps.
        longest_pause_s: The longest pause; leases last 2 s.
        clock_jumps: A clock of the world jumps, by up to a minute.
    """

    refused: float = 0.0
    lost_request: float = 0.0
    lost_reply: float = 0.0
    late: float = 0.0
    repeated: float = 0.0
    split: float = 0.0
    failed_read: float = 0.0
    delayed: float = 0.0
    longest_delay_s: float = 0.02
    lost_hint: float = 0.0
    cancelled: float = 0.0
    paused: float = 0.0
    longest_pause_s: float = 5.0
    clock_jumps: float = 0.0

    @property
    def is_prompt(self) -> bool:
        """Return whether nothing hinders news of a change, so that a waiting client must hear of it soon."""
        return not (self.lost_hint or self.failed_read or self.refused)

    @staticmethod
    def drawn(random: Random) -> Dials:
        """Return dials for a world: a third are calm, in the others each kind of trouble is or is not."""
        if random.random() < 0.3:
            return Dials(delayed=0.5, paused=random.choice([0.0, 0.05]))

        def share(most: float) -> float:
            return round(random.uniform(0.01, most), 3) if random.random() < 0.5 else 0.0

        return Dials(
            refused=share(0.1),
            lost_request=share(0.1),
            lost_reply=share(0.2),
            late=share(0.15),
            repeated=share(0.1),
            split=share(0.3),
            failed_read=share(0.1),
            delayed=random.choice([0.0, 0.3, 0.8]),
            longest_delay_s=random.choice([0.01, 0.1, 1.0]),
            lost_hint=share(0.5),
            cancelled=share(0.05),
            paused=share(0.05),
            longest_pause_s=random.choice([1.0, 5.0, 12.0]),
            clock_jumps=share(0.02),
        )
