"""The log: one JSON line per request with the documented fields, and all other lines in the same form."""

import io
import logging
import subprocess
import sys
from datetime import datetime

import orjson
import pytest

from gateway.accesslog import AccessLog, make_logger
from gateway.exchange import Exchange
from tests.fakes.asgi import scope
from tests.fakes.directories import principal

FIELDS = """
ts level event request_id tenant key_id model route status stream prompt_tokens completion_tokens
usage_estimated queue_ms ttft_ms duration_ms upstream finish_reason bytes_in bytes_out client_ip
client_left refused_by
""".split()  # noqa: SIM905 - as the documentation lists them


def written(exchange: Exchange, duration: float = 0.25) -> bytes:
    out = io.BytesIO()
    AccessLog(out).write(exchange, duration)
    return out.getvalue()


def exchange() -> Exchange:
    head = [("Authorization", "Bearer sk-gh-hush"), ("X-Request-Id", "req-1"), ("Cookie", "hush")]
    return Exchange.begin(scope("POST", "/v1/chat/completions", head), ())


def test_a_request_is_one_json_line_with_exactly_the_documented_fields() -> None:
    raw = written(exchange())
    assert raw.endswith(b"\n")
    assert raw.count(b"\n") == 1
    line = orjson.loads(raw)
    assert sorted(line) == sorted(FIELDS)
    assert (line["event"], line["level"], line["request_id"]) == ("request", "info", "req-1")
    assert datetime.fromisoformat(line["ts"]).tzinfo is not None


def test_what_was_learned_of_the_request_stands_in_its_line() -> None:
    done = exchange()
    done.route, done.status, done.model, done.stream = "/v1/chat/completions", 200, "served", True
    done.principal = principal("aaaaaaaaaa")
    done.prompt_tokens, done.completion_tokens, done.finish_reason = 5, 7, "stop"
    done.ttft, done.upstream, done.bytes_in, done.bytes_out = 0.12344, "vllm", 10, 20
    line = orjson.loads(written(done, 1.5))
    expected = {
        "tenant": "acme",
        "key_id": "aaaaaaaaaa",
        "model": "served",
        "route": "/v1/chat/completions",
        "status": 200,
        "stream": True,
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "ttft_ms": 123.4,
        "duration_ms": 1500.0,
        "upstream": "vllm",
        "finish_reason": "stop",
        "bytes_in": 10,
        "bytes_out": 20,
        "client_ip": "192.0.2.7",
        "client_left": False,
        "refused_by": None,
    }
    assert {name: line[name] for name in expected} == expected


def test_what_is_not_known_is_null_and_not_empty() -> None:
    line = orjson.loads(written(exchange()))
    unknown = ("tenant", "key_id", "model", "prompt_tokens", "completion_tokens", "ttft_ms", "upstream")
    assert all(line[name] is None for name in unknown)


def test_no_key_stands_in_a_line() -> None:
    assert b"hush" not in written(exchange())


def test_other_lines_have_the_same_form() -> None:
    out = io.BytesIO()
    make_logger("info", out).warning("fault", request_id="req-1", error=ValueError)
    line = orjson.loads(out.getvalue())
    assert (line["event"], line["level"], line["request_id"]) == ("fault", "warning", "req-1")
    assert datetime.fromisoformat(line["ts"]).tzinfo is not None


@pytest.mark.parametrize(("level", "lines"), [("debug", 2), ("info", 2), ("warning", 1), ("error", 0)])
def test_lines_below_the_level_are_not_written(level: str, lines: int) -> None:
    out = io.BytesIO()
    log = make_logger(level, out)
    log.info("one")
    log.warning("two")
    assert out.getvalue().count(b"\n") == lines
    assert logging.getLevelNamesMapping()[level.upper()]


LIBRARIES = """
import logging
from gateway.accesslog import route_library_logs
from gateway.relay import BrokenAnswer

route_library_logs("debug")
library = logging.getLogger("library")
library.info("a url with a key")
library.warning("two\\nlines of %s", "text")
for error in (ValueError("why"), BrokenAnswer()):
    try:
        raise error
    except Exception:
        library.exception("failed")
"""


def test_what_libraries_warn_of_is_a_json_line_too_and_what_they_say_below_is_never_heard() -> None:
    """In a process of its own: `logging` has one set-up per process."""
    done = subprocess.run([sys.executable, "-c", LIBRARIES], capture_output=True, check=True, timeout=30)
    lines = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("two\nlines of text", "warning"),
        ("failed", "error"),
    ]
    assert "ValueError: why" in lines[1]["exception"]
    assert done.stderr == b""
