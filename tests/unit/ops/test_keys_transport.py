"""The two ways to the admin API: what is sent, and what each failure is called."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ops.commands import Result
from ops.docker import Docker
from ops.errors import OpsError
from ops.keys_transport import Answer, ExecTransport, HttpTransport, operator
from tests.unit.ops.fake_admin import CALL, said
from tests.unit.ops.fake_commands import DAEMON_DOWN, FakeCommands


def through_docker(result: Result) -> tuple[ExecTransport, FakeCommands]:
    commands = FakeCommands()
    commands.on(CALL, result)
    return ExecTransport(Docker(commands), "Zoë"), commands


def test_through_docker_the_body_goes_on_stdin_and_who_asks_along() -> None:
    transport, commands = through_docker(said(201, {"id": "x"}))
    assert transport.call("POST", "/admin/keys", {"name": "alice"}) == Answer(201, {"id": "x"})
    assert commands.calls[-1][-3:] == ["POST", "/admin/keys", "Zoë"]
    assert json.loads(commands.stdin[-1] or "") == {"name": "alice"}
    transport.call("GET", "/admin/keys?tenant=a")
    assert commands.stdin[-1] == ""


@pytest.mark.parametrize(
    ("result", "message", "fix"),
    [
        (Result(1, err='service "gateway" is not running\n'), "not running", "make up"),
        (Result(1, err="Error: No container found for gateway_1\n"), "not running", "make up"),
        (Result(3, err="gateway: the admin API does not answer: refused\n"), "not running", "make up"),
        (DAEMON_DOWN, "daemon does not answer", "systemctl"),
        (Result(0, "Traceback"), "another version", "--build"),
        (Result(0, "[]"), "another version", "--build"),
        (Result(0, '{"status": null, "body": {}}'), "another version", "--build"),
    ],
)
def test_a_failure_is_one_line_with_its_fix(result: Result, message: str, fix: str) -> None:
    with pytest.raises(OpsError) as caught:
        through_docker(result)[0].call("GET", "/admin/keys")
    assert message in caught.value.message
    assert fix in caught.value.fix


class Recorded(BaseHTTPRequestHandler):
    """Answers each request with the same, and keeps what was asked."""

    def handle_any(self) -> None:
        server = self.server
        assert isinstance(server, RecordingServer)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        server.asked.append((f"{self.command} {self.path}", dict(self.headers.items()), body))
        self.send_response(200)
        self.send_header("content-length", str(len(server.answer)))
        self.end_headers()
        self.wfile.write(server.answer)

    do_GET = do_POST = do_PATCH = handle_any  # noqa: N815 - names that the base class looks for

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the base class's name


class RecordingServer(HTTPServer):
    def __init__(self, answer: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Recorded)
        self.answer = answer
        self.asked: list[tuple[str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def listening(answer: bytes) -> Iterator[RecordingServer]:
    with RecordingServer(answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("t" * 40 + "\n")
    return path


def test_straight_the_token_and_who_asks_go_along(token: Path) -> None:
    with listening(b'{"ok": true}') as server:
        transport = HttpTransport(f"{server.url}/", token, "Zoë")
        assert transport.call("PATCH", "/admin/keys/x", {"plan": "wide"}) == Answer(200, {"ok": True})
        ((asked, headers, body),) = server.asked
    assert asked == "PATCH /admin/keys/x"
    assert headers["authorization"] == "Bearer " + "t" * 40
    assert headers["x-gatehouse-actor"].encode("latin-1").decode() == "Zoë"
    assert json.loads(body) == {"plan": "wide"}


def test_what_is_no_admin_api_is_named(token: Path) -> None:
    with listening(b"<html>") as server, pytest.raises(OpsError, match="not a gateway's admin API"):
        HttpTransport(server.url, token, "me").call("GET", "/admin/keys")


def test_a_gateway_that_takes_too_long_may_have_done_it(token: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        transport = HttpTransport(f"http://127.0.0.1:{silent.getsockname()[1]}", token, "me", timeout=0.1)
        with pytest.raises(OpsError, match="may have been done") as caught:
            transport.call("POST", "/admin/keys", {"name": "alice"})
    assert "0.1 s" in caught.value.message


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nowhere", "http://[::1", "ftp://127.0.0.1"])
def test_nobody_there_is_said(token: Path, url: str) -> None:
    with pytest.raises(OpsError, match="No gateway answers"):
        HttpTransport(url, token, "me").call("GET", "/admin/keys")


def test_a_token_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(OpsError, match="cannot be read"):
        HttpTransport("http://127.0.0.1:9", tmp_path / "none", "me")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(OpsError, match="cannot be read"):
        HttpTransport("http://127.0.0.1:9", tmp_path / "binary", "me")


def test_who_types_is_the_user_behind_sudo() -> None:
    assert operator({"SUDO_USER": "alice"}) == "alice"
    assert operator({"SUDO_USER": "x" * 200}) == "x" * 100
    assert operator({})
