"""`python -m gateway.call`: one call to the admin API beside it; its answer on stdout, a code for scripts."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "b2f7Kq9xW0sLz4TgYv6HnR1cJd8MpE3u"


@dataclass
class AdminAnswer:
    """A listener that gives each caller the same answer and remembers what it was asked."""

    answer: bytes
    port: int = 0
    asked: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(x[15:]) for x in head.lower().splitlines() if x.startswith(b"content-length:")), 0)
        self.asked.append(head + await reader.readexactly(length))
        writer.write(self.answer)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def admin(status: str, body: bytes) -> AsyncIterator[AdminAnswer]:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    answer = AdminAnswer(head.encode() + body)
    server = await asyncio.start_server(answer.serve, "127.0.0.1", 0)
    answer.port = server.sockets[0].getsockname()[1]
    async with server:
        yield answer


@dataclass(frozen=True)
class Done:
    code: int
    out: bytes
    err: bytes


def outside() -> dict[str, str]:
    """The environment without any setting of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}


async def run(tmp_path: Path, port: int, *arguments: str, stdin: bytes = b"", token: str = TOKEN) -> Done:
    (tmp_path / "admin_token").write_text(token)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.call", *arguments),
        cwd=ROOT,
        env=outside() | {"GATEWAY_ADMIN_PORT": str(port), "GATEWAY_SECRETS_DIR": str(tmp_path)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(stdin), 30)
    assert process.returncode is not None
    return Done(process.returncode, out, err)


async def test_an_answer_is_one_json_line_and_exit_code_0(tmp_path: Path) -> None:
    async with admin("201 Created", b'{"id": "aaaaaaaaaa"}') as answer:
        done = await run(tmp_path, answer.port, "POST", "/admin/keys", stdin=b'{"name": "x"}')
    assert (done.code, done.err) == (0, b"")
    assert done.out.count(b"\n") == 1
    assert orjson.loads(done.out) == {"status": 201, "body": {"id": "aaaaaaaaaa"}}
    (asked,) = answer.asked
    assert asked.startswith(b"POST /admin/keys HTTP/1.1\r\n")
    assert f"Authorization: Bearer {TOKEN}\r\n".encode() in asked
    assert asked.endswith(b'{"name": "x"}')


async def test_a_patch_has_a_body_a_query_goes_along_and_who_asks_is_told(tmp_path: Path) -> None:
    async with admin("200 OK", b"{}") as answer:
        await run(tmp_path, answer.port, "PATCH", "/admin/keys/a", "Zoë\n", stdin=b'{"plan": "wide"}')
        await run(tmp_path, answer.port, "GET", "/admin/keys?tenant=a%20b&limit=2")
    patch, get = answer.asked
    assert patch.startswith(b"PATCH /admin/keys/a HTTP/1.1\r\n")
    assert patch.endswith(b'{"plan": "wide"}')
    assert "X-Gatehouse-Actor: Zoë?\r\n".encode() in patch
    assert get.startswith(b"GET /admin/keys?tenant=a%20b&limit=2 HTTP/1.1\r\n")
    assert b"actor" not in get.lower()


async def test_a_refusal_is_an_answer_too(tmp_path: Path) -> None:
    async with admin("404 Not Found", b'{"error": {"code": "path_not_found"}}') as answer:
        done = await run(tmp_path, answer.port, "GET", "/admin/keys", stdin=b"is not read")
    assert done.code == 0
    assert orjson.loads(done.out)["status"] == 404
    assert answer.asked[0].endswith(b"\r\n\r\n")


@pytest.mark.parametrize("body", [b"", b"<html>"])
async def test_what_is_no_json_is_no_answer(tmp_path: Path, body: bytes) -> None:
    async with admin("200 OK", body) as answer:
        done = await run(tmp_path, answer.port, "GET", "/admin/keys")
    assert (done.code, done.out) == (3, b"")
    assert done.err.startswith(b"gateway: the admin API does not answer")


async def test_nobody_listening_is_exit_code_3(tmp_path: Path) -> None:
    async with admin("200 OK", b"{}") as answer:
        pass
    done = await run(tmp_path, answer.port, "GET", "/admin/keys")
    assert (done.code, done.out) == (3, b"")
    assert done.err.count(b"\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("GET",),
        ("GET", "/admin/keys", "me", "more"),
        ("DELETE", "/admin/keys"),
        ("GET", "admin/keys"),
        ("GET", "/admin/keys?tenant=a b"),
        ("GET", "/admin/keys\r\nx: y"),
    ],
)
async def test_a_wrong_command_line_shows_how(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = await run(tmp_path, 1, *arguments)
    assert (done.code, done.out) == (2, b"")
    assert b"python -m gateway.call METHOD PATH" in done.err


async def test_a_token_that_is_none_is_exit_code_2_and_is_not_shown(tmp_path: Path) -> None:
    done = await run(tmp_path, 1, "GET", "/admin/keys", token="changeme-hush")
    assert (done.code, done.out) == (2, b"")
    assert done.err.startswith(b"gateway: secret ")
    assert b"hush" not in done.err
