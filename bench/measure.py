"""Systems side by side: each repetition runs every one, so that what disturbs the machine disturbs all."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from bench.arithmetic import MICROS, cpu_per_unit
from bench.load import Connection, Progress, body_of, check
from bench.systems import System
from standin.config import DEFAULT_MODEL

SETTLE_SECONDS = 0.02
# Far more than a stream takes to begin: a system that fails must not hold the measurement for ever.
STREAM_SECONDS = 20.0
FAST_STREAMS = 3
_PROMPT = (
    "Summarise for the team on call what changed in the service last week, which alerts fired, what was done "
    "about each, and what is left to do. Be brief, name the people who must act, and end with the three "
    "points that matter most. "
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done. Seconds: the engine's `pause` before each token of a paced stream, and `idle`."""

    repetitions: int = 15
    requests: int = 400
    connections: int = 8
    streams: int = 32
    tokens: int = 80
    pause: float = 0.015
    idle: float = 2.0


# Raw results: scenario -> system -> one value a repetition, in CPU microseconds.
Results = dict[str, dict[str, list[float]]]

WHOLE = "non-streamed request"
PACED = "token of a paced stream"
PACED_ALL = "token of a paced stream, its request included"
FAST_ALL = "token at full speed, its request included"
IDLE = "second without requests"


def chat_body(*, stream: bool, tokens: int) -> bytes:
    """A chat request of about 1 KB, as the OpenAI SDK writes it."""
    body: dict[str, object] = {
        "messages": [
            {"role": "system", "content": "You are a careful assistant. Answer in plain English."},
            {"role": "user", "content": _PROMPT * 3},
        ],
        "model": DEFAULT_MODEL,
        "max_tokens": tokens,
        "temperature": 0.2,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return orjson.dumps(body)


class Bench:
    """One engine and the systems before it."""

    def __init__(self, engine: System, systems: Sequence[System], plan: Plan) -> None:
        self._engine = engine
        self._systems = systems
        self._plan = plan
        self._bodies = {stream: chat_body(stream=stream, tokens=plan.tokens) for stream in (False, True)}

    @property
    def body_bytes(self) -> int:
        """Size of a non-streamed request's body."""
        return len(self._bodies[False])

    async def run(self) -> Results:
        """An unmeasured repetition, the measured ones, an idle while. Raises WrongReply."""
        expected = {stream: await self._ask_engine(body) for stream, body in self._bodies.items()}
        results: Results = {}
        for repetition in range(-1, self._plan.repetitions):
            # The order turns, so that no system always runs after the same other.
            turn = repetition % len(self._systems)
            for measure in (self._whole, self._paced, self._fast):
                for system in [*self._systems[turn:], *self._systems[:turn]]:
                    for scenario, value in (await measure(system, expected)).items():
                        if repetition >= 0:
                            results.setdefault(scenario, {}).setdefault(system.name, []).append(value)
        results[IDLE] = await self._idle()
        return results

    async def _whole(self, system: System, expected: Mapping[bool, bytes]) -> Mapping[str, float]:
        """Each connection asks again as soon as it is answered."""
        plan = self._plan
        each = plan.requests // plan.connections
        connections = [await Connection.open(system.target) for _ in range(plan.connections)]
        before = await _settled(system)
        await asyncio.gather(*(self._ask(system, made, expected, each, stream=False) for made in connections))
        after = await _settled(system)
        for connection in connections:
            connection.close()
        return {WHOLE: cpu_per_unit(before, after, each * plan.connections)}

    async def _paced(self, system: System, expected: Mapping[bool, bytes]) -> Mapping[str, float]:
        """The streams begin apart, so that the engine does not send a token of each at one moment."""
        plan = self._plan
        await self._set_pace(plan.pause)
        progress = Progress(plan.streams)
        connections = [await Connection.open(system.target, progress) for _ in range(plan.streams)]
        before = await _settled(system)
        asked = []
        for connection in connections:
            asked.append(asyncio.create_task(self._ask(system, connection, expected, 1, stream=True)))
            await asyncio.sleep(plan.pause / plan.streams)
        await asyncio.wait_for(progress.all_begun.wait(), STREAM_SECONDS)
        begun = system.cpu_seconds(), progress.events
        await asyncio.wait(asked, return_when="FIRST_COMPLETED")
        ended = system.cpu_seconds(), progress.events
        await asyncio.gather(*asked)
        after = await _settled(system)
        for connection in connections:
            connection.close()
        return {
            PACED: cpu_per_unit(begun[0], ended[0], ended[1] - begun[1]),
            PACED_ALL: cpu_per_unit(before, after, plan.streams * plan.tokens),
        }

    async def _fast(self, system: System, expected: Mapping[bool, bytes]) -> Mapping[str, float]:
        """As fast as the engine sends; several streams one after the other, for they are short."""
        plan = self._plan
        await self._set_pace(0)
        connections = [await Connection.open(system.target) for _ in range(plan.streams)]
        before = await _settled(system)
        asked = (self._ask(system, made, expected, FAST_STREAMS, stream=True) for made in connections)
        await asyncio.gather(*asked)
        after = await _settled(system)
        for connection in connections:
            connection.close()
        return {FAST_ALL: cpu_per_unit(before, after, plan.streams * FAST_STREAMS * plan.tokens)}

    async def _ask(
        self, system: System, made: Connection, expected: Mapping[bool, bytes], times: int, *, stream: bool
    ) -> None:
        request = system.target.request(self._bodies[stream])
        for _ in range(times):
            check(await made.ask(request), expected[stream])

    async def _idle(self) -> dict[str, list[float]]:
        """CPU per second of each system while nobody asks: part of all its other values."""
        before = [system.cpu_seconds() for system in self._systems]
        started = asyncio.get_running_loop().time()
        await asyncio.sleep(self._plan.idle)
        seconds = asyncio.get_running_loop().time() - started
        return {
            system.name: [(system.cpu_seconds() - cpu) * MICROS / seconds]
            for system, cpu in zip(self._systems, before, strict=True)
        }

    async def _ask_engine(self, body: bytes) -> bytes:
        """What the engine itself answers: what every system must answer too."""
        connection = await Connection.open(self._engine.target)
        reply = body_of(await connection.ask(self._engine.target.request(body)))
        connection.close()
        return reply

    async def _set_pace(self, pause: float) -> None:
        connection = await Connection.open(self._engine.target)
        body = b"%f" % pause
        head = b"POST /pace HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body)
        body_of(await connection.ask(head + body))
        connection.close()


async def _settled(system: System) -> float:
    """The CPU clock once the system sleeps.

    What follows an answer's last byte counts too, and the kernel adds the time of a process that runs on
    another core only when that process pauses, or at the next tick.
    """
    await asyncio.sleep(SETTLE_SECONDS)
    return system.cpu_seconds()
