"""Timeouts of everything that waits for others, by one timer of the event loop.

Nearly none ever goes off, and a timer of its own for each is five times as dear: an `asyncio.timeout` that is
set, moved and left takes 5 µs, a deadline 1 µs.
"""

import asyncio
import math
from types import TracebackType
from typing import Self


class Deadlines:
    """Every block of one event loop that runs under a deadline. The timer stands at or before the earliest of
    them: it is set anew when it goes off, or when a deadline comes before it, which is seldom.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._running: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.due = math.inf

    def within(self, seconds: float, *, idle: float = 0.0, total: float = math.inf) -> "Deadline":
        """A `with` block that is cancelled after `seconds`, and then raises TimeoutError. Each time that it
        is renewed it may take `idle` seconds from then on, but no more than `total` seconds in all.
        """
        return Deadline(self, seconds, idle, total)

    def begin(self, deadline: "Deadline") -> None:
        self._running.add(deadline)
        self.look_by(deadline.at)

    def end(self, deadline: "Deadline") -> None:
        self._running.discard(deadline)

    def look_by(self, at: float) -> None:
        if at < self.due:
            if self._timer is not None:
                self._timer.cancel()
            self.due = at
            self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        now, self.due, self._timer = self.due, math.inf, None
        for deadline in [found for found in self._running if found.at <= now]:
            self._running.discard(deadline)
            deadline.expire()
        self.look_by(min((deadline.at for deadline in self._running), default=math.inf))


class Deadline:
    """One block under a deadline. `at` is by the event loop's clock."""

    __slots__ = (
        "_all",
        "_cancelling",
        "_end",
        "_expired",
        "_idle",
        "_now",
        "_seconds",
        "_task",
        "_total",
        "at",
    )

    def __init__(self, all_of_them: Deadlines, seconds: float, idle: float, total: float) -> None:
        self._all = all_of_them
        self._now = all_of_them.now
        self._seconds = seconds
        self._idle = idle
        self._total = total
        self._expired = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        now = self._now()
        self._end = now + self._total
        self.at = now + min(self._seconds, self._total)
        self._all.begin(self)
        return self

    def renew(self) -> None:
        """The block may take its `idle` seconds from now on, whatever was left before."""
        at = self._now() + self._idle
        self.at = at = at if at < self._end else self._end  # noqa: FURB136 - `min` costs a call, on every token
        if at < self._all.due:
            self._all.look_by(at)

    def expire(self) -> None:
        self._expired = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.end(self)
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
