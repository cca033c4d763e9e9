"""A block that ends when its client leaves, and only then, and only it."""

import asyncio

import pytest

from gateway.body import ClientGone
from gateway.presence import Presence
from tests.fakes.asgi import Client, scope


class Held:
    """A block that waits while its client is there."""

    def __init__(self) -> None:
        self.presence = Presence()
        self.inside = asyncio.Event()

    async def hold(self) -> None:
        with self.presence:
            self.inside.set()
            await asyncio.sleep(30)

    async def begin(self) -> "asyncio.Task[None]":
        task = asyncio.create_task(self.hold())
        await self.inside.wait()
        return task


async def test_a_block_whose_client_leaves_is_ended_as_client_gone() -> None:
    held = Held()
    task = await held.begin()
    held.presence.leave()
    with pytest.raises(ClientGone):
        await task
    assert task.cancelling() == 0


async def test_a_block_does_not_begin_for_a_client_that_has_left() -> None:
    held = Held()
    held.presence.leave()
    with pytest.raises(ClientGone):
        await held.hold()
    assert not held.inside.is_set()


async def test_a_block_that_is_cancelled_from_outside_stays_cancelled() -> None:
    task = await Held().begin()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_from_outside_goes_before_a_client_that_leaves_at_the_same_time() -> None:
    held = Held()
    task = await held.begin()
    held.presence.leave()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("fault", [None, ValueError("why")])
async def test_a_client_that_leaves_after_the_block_disturbs_nothing(fault: Exception | None) -> None:
    presence = Presence()

    async def block() -> str:
        try:
            with presence:
                await asyncio.sleep(0)
                if fault:
                    raise fault
        except ValueError:
            pass
        presence.leave()
        await asyncio.sleep(0)
        return "went on"

    assert await asyncio.create_task(block()) == "went on"


async def test_what_a_block_raises_while_its_client_stays_is_raised() -> None:
    with pytest.raises(ValueError, match="why"), Presence():
        raise ValueError("why")


async def test_the_requests_of_one_connection_share_its_presence() -> None:
    client = Client()
    first, second = (Presence.of(scope("POST", "/", client=client)) for _ in range(2))
    assert first is second is client.presence
