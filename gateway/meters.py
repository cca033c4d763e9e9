"""What one limit's subject has used: a window of requests or of tokens, places, a quota."""

# ruff: noqa: ARG002 - one interface, of which not every kind of meter needs all

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.limits import Lease, Period

# Somebody else's request may end at any moment.
PLACE_RETRY_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class MemoryLease(Lease):
    """`began` is monotonic. `held`: the meters that were charged, and in which period."""

    began: float = 0.0
    held: list[tuple["Meter", Any]] = field(default_factory=list)


class Meter(Protocol):
    """What one limit's subject has used. `now`: monotonic seconds."""

    def used(self, now: float) -> int: ...

    def charge(self, lease: MemoryLease) -> Any:
        """Adds the lease; what it returns is handed to `settle`."""

    def settle(self, lease: MemoryLease, mark: Any, more: int) -> None:
        """`more` tokens were used than the lease says, or fewer if negative."""

    def reset(self, now: float) -> float:
        """Seconds until nothing is used."""

    def fits_in(self, amount: int, need: int, now: float) -> float:
        """Seconds until `need` more stay within `amount`, if nothing else comes."""

    def idle(self, now: float) -> bool:
        """Whether it can be forgotten."""


class Requests:
    """The last minute's requests, so that no 60 seconds ever hold more than the limit."""

    __slots__ = ("_taken", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._taken: deque[float] = deque()

    def used(self, now: float) -> int:
        taken, start = self._taken, now - self._window
        while taken and taken[0] <= start:
            taken.popleft()
        return len(taken)

    def charge(self, lease: MemoryLease) -> None:
        self._taken.append(lease.began)

    def settle(self, lease: MemoryLease, mark: Any, more: int) -> None:
        pass

    def reset(self, now: float) -> float:
        return self._taken[-1] + self._window - now if self._taken else 0.0

    def fits_in(self, amount: int, need: int, now: float) -> float:
        # A limit that was lowered leaves more in the window than it allows: enough of them must leave.
        return self._taken[len(self._taken) - amount + need - 1] + self._window - now

    def idle(self, now: float) -> bool:
        return not self.used(now)


class Tokens:
    """The tokens of the requests that began in the last minute."""

    __slots__ = ("_leases", "_sum", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._leases: deque[MemoryLease] = deque()
        self._sum = 0

    def used(self, now: float) -> int:
        leases, start = self._leases, now - self._window
        while leases and leases[0].began <= start:
            lease = leases.popleft()
            lease.held = [pair for pair in lease.held if pair[0] is not self]
            self._sum -= lease.tokens
        return self._sum

    def charge(self, lease: MemoryLease) -> None:
        self._leases.append(lease)
        self._sum += lease.tokens

    def settle(self, lease: MemoryLease, mark: Any, more: int) -> None:
        self._sum += more

    def reset(self, now: float) -> float:
        return self._leases[-1].began + self._window - now if self._leases else 0.0

    def fits_in(self, amount: int, need: int, now: float) -> float:
        excess, wait = self._sum + need - amount, 0.0
        for lease in self._leases:
            if excess <= 0:
                break
            excess -= lease.tokens
            wait = lease.began + self._window - now
        return wait

    def idle(self, now: float) -> bool:
        self.used(now)
        return not self._leases


class Places:
    """Requests that run now."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = 0

    def used(self, now: float) -> int:
        return self._taken

    def charge(self, lease: MemoryLease) -> None:
        self._taken += 1

    def settle(self, lease: MemoryLease, mark: Any, more: int) -> None:
        self._taken -= 1

    def reset(self, now: float) -> float:
        return PLACE_RETRY_SECONDS if self._taken else 0.0

    def fits_in(self, amount: int, need: int, now: float) -> float:
        return PLACE_RETRY_SECONDS

    def idle(self, now: float) -> bool:
        return not self._taken


class Quota:
    """The tokens of the requests that began in the present day or month."""

    __slots__ = ("_clock", "_period", "_period_of", "_settled", "_sum")

    def __init__(self, period_of: Callable[[float], Period], clock: Callable[[], float]) -> None:
        self._period_of = period_of
        self._clock = clock
        self._period = period_of(clock())
        self._sum = 0
        self._settled = 0

    def seed(self, period: str, tokens: int) -> None:
        """`tokens` is all that was settled, by this process too."""
        if self._period.id == period and tokens > self._settled:
            self._sum += tokens - self._settled
            self._settled = tokens

    def used(self, now: float) -> int:
        at = self._clock()
        if not self._period.start <= at < self._period.end:
            self._period, self._sum, self._settled = self._period_of(at), 0, 0
        return self._sum

    def charge(self, lease: MemoryLease) -> Period:
        self._sum += lease.tokens
        return self._period

    def settle(self, lease: MemoryLease, mark: Any, more: int) -> None:
        if mark is self._period:
            self._sum += more
            self._settled += lease.tokens + more

    def reset(self, now: float) -> float:
        return self._period.end - self._clock()

    def fits_in(self, amount: int, need: int, now: float) -> float:
        return self.reset(now)

    def idle(self, now: float) -> bool:
        return not self.used(now)
