"""The official SDKs for Node: answers, streams, and the class that each error raises."""

import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from docs import generate
from gateway import anthropic
from gateway.errors import NO_RETRY, GatewayError
from tests.capabilities import ROOT
from tests.contract.subject import ALIAS, Subject
from tests.fakes import scenarios
from tests.fakes.engine import FakeEngine
from tests.unit.gateway.test_anthropic import SDK_CLASS as ANTHROPIC_CLASS
from tests.unit.gateway.test_errors import made, raisable

pytestmark = pytest.mark.requires("node")

TEXT = "hello world"
SECONDS = 60.0
ERRORS = {kind.__name__: made(kind) for kind in raisable()}
# Node's SDKs call the base of their errors with a status `APIError`.
NODE_BASE = "APIError"

Run = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


@pytest.fixture
def run(capability: Callable[[str], Mapping[str, str]]) -> Run:
    """Makes calls in a Node process."""
    node = capability("node")

    def run(asks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        done = subprocess.run(
            [node["NODE"], ROOT / "tests/sdk_node/client.cjs"],
            input=json.dumps(asks),
            env=os.environ | {"NODE_PATH": node["NODE_PATH"]},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results: list[dict[str, Any]] = json.loads(done.stdout)
        return results

    return run


def ask(subject: Subject, call: str, **fields: object) -> dict[str, Any]:
    asked = {"url": subject.gateway.url, "key": subject.key.text, "model": subject.model, "text": TEXT}
    return asked | {"call": call, "tokens": 6} | fields


def test_every_route_answers_node_as_it_answers_python(subject: Subject, run: Run) -> None:
    calls = ("chat", "completion", "response", "message", "chatStream", "responseStream", "messageStream")
    results = run([ask(subject, call, model=ALIAS) for call in calls])
    assert [result.get("raised") for result in results] == [None] * len(calls)
    whole, streamed = results[:4], results[4:]
    assert all(result["text"] for result in results)
    assert all(result["output"] == 6 for result in [*whole, *streamed[1:]])
    assert [result["text"] for result in streamed] == [whole[0]["text"], whole[2]["text"], whole[3]["text"]]
    assert whole[0]["id"]
    assert whole[3]["id"]
    assert streamed[1]["last"] == "response.completed"


def test_models_are_listed_and_messages_counted(subject: Subject, run: Run) -> None:
    models, count = run([ask(subject, "models"), ask(subject, "countTokens")])
    assert set(models["names"]) == {subject.model, ALIAS}
    assert count["input"] > 0


@pytest.mark.parametrize("call", ["chatStream", "responseStream", "messageStream"])
def test_a_stream_that_breaks_off_raises(subject: Subject, run: Run, engine: FakeEngine, call: str) -> None:
    engine.scenario = scenarios.closes_after(5)
    (result,) = run([ask(subject, call, tokens=20)])
    assert result["raised"] in {NODE_BASE, "AnthropicError"}
    assert (result["code"], result.get("status")) == ("engine_error", None)


class _Errors(BaseHTTPRequestHandler):
    """Answers with the error that the path begins with, in the shape of the path's dialect."""

    protocol_version = "HTTP/1.1"
    seen: Counter[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        _, name, rest = self.path.split("/", 2)
        self.seen[name + rest] += 1
        error = ERRORS[name]
        body = anthropic.error_body(error, "req-1") if rest == "v1/messages" else error.body()
        self.send_response(error.status)
        for header, value in error.headers:
            if header != b"retry-after":
                self.send_header(header.decode(), value.decode())
        self.send_header("retry-after-ms", "1")  # the SDKs' own header: so that no test need wait
        for id_header in ("x-request-id", "request-id"):
            self.send_header(id_header, "req-1")
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@pytest.fixture
def errors() -> Iterator[tuple[str, Counter[str]]]:
    """A server of errors: its URL, and how often each was asked for."""
    seen: Counter[str] = Counter()
    handler = type("Errors", (_Errors,), {"seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("call", "path"), [("chat", "v1/chat/completions"), ("message", "v1/messages")])
def test_every_error_raises_its_class_and_is_tried_again_only_where_that_can_help(
    run: Run, errors: tuple[str, Counter[str]], call: str, path: str
) -> None:
    url, seen = errors
    asked = {"key": "key", "model": "m", "text": TEXT, "tokens": 1, "call": call, "retries": 1}
    results = run([asked | {"url": f"{url}/{name}"} for name in ERRORS])
    for (name, error), result in zip(ERRORS.items(), results, strict=True):
        assert result == {
            "raised": node_class(error, call),
            "status": error.status,
            "code": error.code,
            "type": anthropic.error_type(error.status) if call == "message" else error.type,
            "requestID": "req-1",
        }, name
        tries = seen[name + path]
        assert tries == (2 if may_help(error) else 1), name


def node_class(error: GatewayError, call: str) -> str:
    """As in Python, but for the base."""
    name = generate.sdk_class(error.status)
    if call == "message" and error.status in ANTHROPIC_CLASS:
        name = ANTHROPIC_CLASS[error.status].__name__
    return NODE_BASE if name == generate.OTHER else name


def may_help(error: GatewayError) -> bool:
    return NO_RETRY not in error.headers and (error.status in (408, 409, 429) or error.status >= 500)
