"""An answer on the wire: its head with the first bytes of its body, each later piece alone, well framed."""

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.cycle import Cycle

DATE = (b"date", b"today")
LENGTH_2 = (b"content-length", b"2")


class Wire(asyncio.Transport):
    """Keeps each write, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True


class Answering:
    """A cycle and the wire it writes to."""

    def __init__(self, method: str = "POST", *, keep_alive: bool = True) -> None:
        self.wire = Wire()
        self.flow = FlowControl(self.wire)
        self.completed = 0
        log = logging.getLogger("test")
        self.cycle = Cycle(
            scope={"type": "http", "method": method},  # type: ignore[typeddict-item] # what it reads of it
            transport=self.wire,
            flow=self.flow,
            logger=log,
            access_logger=log,
            access_log=False,
            default_headers=[DATE],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=keep_alive,
            on_response=self._complete,
        )

    def _complete(self) -> None:
        self.completed += 1

    async def begin(self, *headers: tuple[bytes, bytes], status: int = 200) -> None:
        await self.cycle.send({"type": "http.response.start", "status": status, "headers": headers})

    async def put(self, body: bytes, *, more: bool = False) -> None:
        await self.cycle.send({"type": "http.response.body", "body": body, "more_body": more})


async def test_a_whole_answer_is_one_write() -> None:
    answer = Answering()
    await answer.begin((b"content-type", b"text/plain"), LENGTH_2)
    assert answer.wire.writes == []
    await answer.put(b"ok")
    head = b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n"
    assert answer.wire.writes == [head + b"ok"]
    assert (answer.completed, answer.cycle.response_complete, answer.wire.closed) == (1, True, False)


async def test_each_piece_of_a_stream_is_a_chunk_and_a_write() -> None:
    answer = Answering()
    await answer.begin()
    await answer.put(b"a" * 17, more=True)
    await answer.put(b"", more=True)
    await answer.put(b"b", more=True)
    assert answer.completed == 0
    await answer.put(b"")
    head = b"HTTP/1.1 200 OK\r\ndate: today\r\ntransfer-encoding: chunked\r\n\r\n"
    assert answer.wire.writes == [head + b"11\r\n" + b"a" * 17 + b"\r\n", b"1\r\nb\r\n", b"0\r\n\r\n"]
    assert answer.completed == 1


async def test_a_connection_that_is_not_kept_is_announced_and_closed() -> None:
    answer = Answering(keep_alive=False)
    await answer.begin(LENGTH_2)
    await answer.put(b"ok")
    assert b"\r\nconnection: close\r\n" in answer.wire.writes[0]
    assert answer.wire.closed


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 204), ("POST", 304)])
async def test_an_answer_that_has_no_body_has_no_framing_of_one(method: str, status: int) -> None:
    answer = Answering(method)
    await answer.begin(status=status)
    await answer.put(b"unsent" if method == "HEAD" else b"")
    (head,) = answer.wire.writes
    assert head.endswith(b"\r\ndate: today\r\n\r\n")
    assert answer.completed == 1


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb"])
async def test_a_header_cannot_bring_in_another(value: bytes) -> None:
    answer = Answering()
    with pytest.raises(RuntimeError, match="line break"):
        await answer.begin((b"x-note", value))
    assert answer.wire.writes == []


@pytest.mark.parametrize(("body", "wrong"), [(b"long", "longer"), (b"s", "shorter")])
async def test_a_body_of_another_length_than_announced_is_a_fault(body: bytes, wrong: str) -> None:
    answer = Answering()
    await answer.begin(LENGTH_2)
    with pytest.raises(RuntimeError, match=wrong):
        await answer.put(body)
    assert answer.completed == 0


async def test_messages_out_of_order_are_a_fault() -> None:
    answer = Answering()
    with pytest.raises(RuntimeError, match="head before it"):
        await answer.put(b"ok")
    await answer.begin(LENGTH_2)
    with pytest.raises(RuntimeError, match="no place"):
        await answer.begin(LENGTH_2)
    await answer.put(b"ok")
    with pytest.raises(RuntimeError, match="ends once"):
        await answer.put(b"ok")


async def test_nothing_is_written_for_a_client_that_has_gone() -> None:
    answer = Answering()
    await answer.begin(LENGTH_2)
    answer.cycle.disconnected = True
    await answer.put(b"ok")
    await answer.put(b"whatever", more=True)
    assert (answer.wire.writes, answer.completed) == ([], 0)


async def test_a_client_that_does_not_take_is_waited_for() -> None:
    answer = Answering()
    await answer.begin()
    answer.flow.pause_writing()
    waiting: asyncio.Task[Any] = asyncio.create_task(answer.put(b"ok", more=True))
    await asyncio.sleep(0)
    assert answer.wire.writes == []
    answer.flow.resume_writing()
    await waiting
    assert answer.wire.writes[0].endswith(b"2\r\nok\r\n")
