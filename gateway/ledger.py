"""The usage ledger: what was settled reaches the store exactly once, whatever dies in between.

A settled request is one line appended to this process's spool file: a SIGKILL takes nothing that was
recorded. Each second the new lines are summed up per day, key and model, and the sums are added to the store
in the same transaction that moves the spool's mark, so that no line is counted twice. What dead processes
left is counted by the next one.
"""

from collections.abc import Sequence
from pathlib import Path

from gateway.limits import Total
from gateway.store import DayUsage, Store, UsageEntry


class Ledger:
    """One process's ledger. `problem`: why usage is not on the disk or not in the store, for people; None
    when all is well. `waiting`: bytes of recorded usage that are not in the store yet.
    """

    problem: str | None
    waiting: int

    def __init__(self, store: Store, directory: Path, timezone: str) -> None:
        """`directory` is made. Raises OSError where it cannot be written."""
        raise NotImplementedError

    def record(self, entry: UsageEntry) -> None:
        """Keeps the entry, surviving this process's death. Never raises: with a full disk it is held in
        memory as sums, and `problem` says so.
        """
        raise NotImplementedError

    async def flush(self) -> None:
        """Brings what is recorded, and what dead processes left, to the store. A store that is gone is
        noted, not raised.
        """
        raise NotImplementedError

    async def keep_flushing(self) -> None:
        """Flushes each second until cancelled."""
        raise NotImplementedError

    async def usage(
        self, from_day: str, to_day: str, *, tenant: str | None = None, key_id: str | None = None
    ) -> Sequence[DayUsage]:
        """Sums of the days, both included, with what this process has not flushed yet. Raises StoreError."""
        raise NotImplementedError

    async def totals(self) -> Sequence[Total]:
        """Tokens of the present day and month per key, tenant and all, for the limiter's quotas. Raises
        StoreError.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Flushes a last time; what cannot reach the store stays in the spool for the next process."""
        raise NotImplementedError
