"""Two ways to the running gateway's admin API: through its container, and straight."""

import json
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ops.docker import Docker, explain
from ops.errors import OpsError

TIMEOUT_SECONDS = 30
_UNREACHABLE = 3
_NOT_RUNNING = OpsError("The gateway is not running.", "Run `make up`; `make status` shows what runs.")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the admin API: HTTP status and decoded JSON body."""

    status: int
    body: Any


class Transport(Protocol):
    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """One call to the admin API. Raises OpsError where the gateway does not answer."""


class ExecTransport:
    """Through `docker compose exec`: the admin API listens on the container's own loopback only. `actor`: who
    asks, for the audit log.
    """

    def __init__(self, docker: Docker, actor: str) -> None:
        self._docker = docker
        self._actor = actor

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        command = ["exec", "-T", "gateway", "python", "-m", "gateway.call", method, path, self._actor]
        result = self._docker.capture(*command, stdin=json.dumps(body) if body is not None else "")
        if (
            result.code == _UNREACHABLE
            or "is not running" in result.err
            or "no container found" in result.err.lower()
        ):
            raise _NOT_RUNNING
        if not result.ok:
            raise explain(result, "docker compose exec gateway")
        return _answer(result.out)


class HttpTransport:
    """Straight to an admin API at `url`, with the token in `token_file`: for a gateway outside Docker.
    `timeout` in seconds.
    """

    def __init__(self, url: str, token_file: Path, actor: str, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self._url = url.rstrip("/")
        self._actor = actor
        self._timeout = timeout
        try:
            self._token = token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OpsError(f"{token_file} cannot be read: {error}.", "Check --admin-token-file.") from None

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        import httpx2  # noqa: PLC0415 - a third of a second that the usual way does not need

        headers = {
            b"authorization": b"Bearer " + self._token.encode(),
            b"x-gatehouse-actor": self._actor.encode(),
        }
        try:
            answer = httpx2.request(
                method, self._url + path, json=body, headers=headers, timeout=self._timeout
            )
            return Answer(answer.status_code, answer.json())
        except httpx2.ReadTimeout:
            raise OpsError(
                f"The gateway at {self._url} did not answer in {self._timeout:g} s; what was asked may have "
                "been done.",
                "Look before you try again.",
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise OpsError(
                f"No gateway answers at {self._url} ({type(error).__name__}).", "Check --admin-url."
            ) from None
        except ValueError:
            raise OpsError(f"{self._url} is not a gateway's admin API.", "Check --admin-url.") from None


def operator(environ: Mapping[str, str]) -> str:
    """Who types: the user behind `sudo`, or this process's."""
    if behind := environ.get("SUDO_USER"):
        return behind[:100]
    try:
        return pwd.getpwuid(os.getuid()).pw_name[:100]
    except KeyError:
        return f"user {os.getuid()}"


def _answer(out: str) -> Answer:
    try:
        said = json.loads(out)
        return Answer(int(said["status"]), said["body"])
    except (ValueError, KeyError, TypeError):
        raise OpsError(
            "The gateway's image is another version than these commands.", "Run `make up ARGS=--build`."
        ) from None
