"""The measurements by name: which systems stand side by side, and why."""

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

import uvloop

from bench import systems
from bench.clients import CLIENTS
from bench.measure import Bench, Plan, Results
from bench.report import Report, facts
from bench.systems import Cores, System

BASE_CLIENT = "aiohttp"
# Puts what is measured before the engine at a port, in a folder of its own, until the stack closes.
Start = Callable[[ExitStack, Path, int, Cores], list[System]]


def gateway(plan: Plan) -> Report:
    """The gateway, with all its checks, beside a bare relay on the same server and client."""

    def start(stack: ExitStack, folder: Path, engine_port: int, cores: Cores) -> list[System]:
        relay = stack.enter_context(
            systems.bare_relay(folder, BASE_CLIENT, engine_port, cores, name="bare relay")
        )
        return [relay, stack.enter_context(systems.gateway(folder, engine_port, cores))]

    measured = facts()  # before it: a file that is edited meanwhile is not what runs
    results, method = _measure(start, plan)
    whole = (
        "The gateway does all of its work: its key has a limit of each kind (requests and tokens per minute, "
        "parallel requests, tokens per day and month), each checked, charged and settled in memory; each "
        "request is a line in the ledger, flushed to SQLite, and one in the access log, a file."
    )
    return Report(
        "gateway", "The gateway beside a bare relay", "bare relay", [*method, whole], plan, results, measured
    )


def http_clients(plan: Plan) -> Report:
    """The bare relay on each HTTP client that could carry the data path."""

    def start(stack: ExitStack, folder: Path, engine_port: int, cores: Cores) -> list[System]:
        return [stack.enter_context(systems.bare_relay(folder, name, engine_port, cores)) for name in CLIENTS]

    measured = facts()
    results, method = _measure(start, plan)
    raw = "`raw` is an httptools parser on a socket without any check: a lower bound, not a candidate."
    return Report(
        "http_clients",
        "A bare relay on each HTTP client",
        BASE_CLIENT,
        [*method, raw],
        plan,
        results,
        measured,
    )


BENCHES: Mapping[str, Callable[[Plan], Report]] = MappingProxyType(
    {"gateway": gateway, "http_clients": http_clients}
)


def _measure(start: Start, plan: Plan) -> tuple[Results, list[str]]:
    cores = Cores.of_this_machine()
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        folder = Path(name)
        engine = stack.enter_context(systems.engine(folder, plan.tokens, cores))
        started = start(stack, folder, engine.target.port, cores)
        with systems.on(cores.rest), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            bench = Bench(engine, started, plan)
            return runner.run(bench.run()), _method(plan, bench.body_bytes, cores)


def _method(plan: Plan, body_bytes: int, cores: Cores) -> list[str]:
    pinned = (
        f"Systems measured run on core {min(cores.measured)}, engine and client on the rest."
        if cores.measured.isdisjoint(cores.rest)
        else "All processes share one core."
    )
    return [
        f"{plan.repetitions} repetitions after an uncounted one; each runs every system, in turning order.",
        f"{plan.requests} requests a repetition on {plan.connections} connections, {body_bytes} bytes each.",
        f"Streams: {plan.streams} at a time, {plan.tokens} tokens each.",
        f"Paced: one token every {plan.pause * 1000:g} ms in each stream, the streams apart from each other.",
        "Full speed: the engine sends without a pause, so that one read holds several events.",
        "The engine is bench/mock_engine.py; each reply is compared byte for byte with the engine's own.",
        pinned,
    ]
