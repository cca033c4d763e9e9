"""One JSON line per request, and all other log lines in the same form. No key, prompt or answer is ever in
one.
"""

import logging
import sys
import time
from typing import Any, BinaryIO

import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger

from gateway.exchange import Exchange
from gateway.relay import BrokenAnswer


def make_logger(level: str, stream: BinaryIO) -> FilteringBoundLogger:
    """A logger that writes JSON lines to `stream`."""
    wrapper = structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()])
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.BytesLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.JSONRenderer(serializer=_dump),
        ],
        wrapper_class=wrapper,
        cache_logger_on_first_use=True,
    )
    return logger


def route_library_logs(level: str) -> None:
    """Sends what libraries log through `logging` to stdout as JSON lines of the same form. Called once, by
    the process.
    """
    handler = logging.StreamHandler(sys.stdout)
    # How the server learns that it must close a connection; the access line says what happened.
    handler.addFilter(lambda record: not (record.exc_info and record.exc_info[0] is BrokenAnswer))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(serializer=lambda value, **_: _dump(value).decode()),
            ],
        )
    )
    # Libraries are heard from `warning` on: what they say below that repeats the access line, or holds a URL.
    logging.basicConfig(
        level=max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]),
        handlers=[handler],
        force=True,
    )


class AccessLog:
    """Writes the canonical line of each request, with the fields that the documentation lists.

    Not through the logger: its processors cost more than the rest of the line (docs/measurements.md).
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._second = 0
        self._date = ""

    def write(self, exchange: Exchange, duration: float) -> None:
        """One line; `duration` in seconds."""
        who = exchange.principal
        line = {
            "ts": self._now(),
            "level": "info",
            "event": "request",
            "request_id": exchange.request_id,
            "tenant": who.tenant if who else None,
            "key_id": who.key_id if who else None,
            "model": exchange.model or None,
            "route": exchange.route,
            "status": exchange.status,
            "stream": exchange.stream,
            "prompt_tokens": exchange.prompt_tokens,
            "completion_tokens": exchange.completion_tokens,
            "usage_estimated": exchange.estimated,
            "queue_ms": 0.0,  # nothing queues in the gateway yet: the engine's own queue is inside ttft_ms
            "ttft_ms": _millis(exchange.ttft),
            "duration_ms": _millis(duration),
            "upstream": exchange.upstream,
            "finish_reason": exchange.finish_reason,
            "bytes_in": exchange.bytes_in,
            "bytes_out": exchange.bytes_out,
            "client_ip": exchange.client_ip,
            "client_left": exchange.client_left,
            "refused_by": exchange.refused_by,
        }
        self._stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self._stream.flush()

    def _now(self) -> str:
        """As ISO 8601 has it; date and time of day are put into words once a second."""
        second, part = divmod(time.time_ns(), 1_000_000_000)
        if second != self._second:
            self._second, self._date = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._date}.{part // 1000:06d}+00:00"


def _millis(seconds: float | None) -> float | None:
    return None if seconds is None else int(seconds * 10_000 + 0.5) / 10


def _dump(value: EventDict, **_: Any) -> bytes:
    return orjson.dumps(value, default=repr)
