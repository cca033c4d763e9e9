"""An event loop whose waits take no time: its clock jumps to the next timer when idle."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class _AtOnce(ThreadPoolExecutor):
    """Does in this thread what was meant for another: no time passes while it is waited for."""

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
            done.set_exception(error)
        return done


class _Impatient(selectors.DefaultSelector):
    """Never waits: what it was asked to wait for is counted as passed."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits, and nothing will ever happen")
        self.passed += max(timeout, 0.0)
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """For code without real I/O."""

    def __init__(self) -> None:
        self._impatient = _Impatient()
        super().__init__(self._impatient)
        self.set_default_executor(_AtOnce(max_workers=1))

    def time(self) -> float:
        return self._impatient.passed


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, whose sleeps and timeouts take no real time."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)
