"""`make keys`: creates, lists and revokes API keys through the running gateway's admin API."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ops.docker import Docker, explain
from ops.errors import OpsError

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
    """Through `docker compose exec`: the admin API listens on the container's own loopback only."""

    def __init__(self, docker: Docker) -> None:
        self._docker = docker

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        command = ["exec", "-T", "gateway", "python", "-m", "gateway.call", method, path]
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
    """Straight to an admin API at `url`, with the token in `token_file`: for a gateway outside Docker."""

    def __init__(self, url: str, token_file: Path) -> None:
        self._url = url.rstrip("/")
        try:
            self._token = token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OpsError(f"{token_file} cannot be read: {error}.", "Check --admin-token-file.") from None

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        import httpx2  # noqa: PLC0415 - a third of a second that the usual way does not need

        try:
            headers = {"Authorization": f"Bearer {self._token}"}
            answer = httpx2.request(method, self._url + path, json=body, headers=headers, timeout=10)
            return Answer(answer.status_code, answer.json())
        except httpx2.HTTPError as error:
            raise OpsError(
                f"No gateway answers at {self._url} ({type(error).__name__}).", "Check --admin-url."
            ) from None
        except ValueError:
            raise OpsError(f"{self._url} is not a gateway's admin API.", "Check --admin-url.") from None


def create(transport: Transport, request: Mapping[str, Any]) -> dict[str, Any]:
    """The new key's record with its `key`, which is never shown again. Raises OpsError."""
    return _body(transport.call("POST", "/admin/keys", request), 201)


def list_keys(transport: Transport) -> list[dict[str, Any]]:
    """All keys' records, without secrets. Raises OpsError."""
    keys = _body(transport.call("GET", "/admin/keys"), 200).get("keys")
    return list(keys) if isinstance(keys, list) else []


def revoke(transport: Transport, key_id: str) -> dict[str, Any]:
    """The revoked key's record. Raises OpsError for an id that does not exist."""
    if not key_id.isalnum():
        raise OpsError(f"{key_id!r} is not a key's id.", "`make keys ARGS=list` shows the ids.")
    answer = transport.call("POST", f"/admin/keys/{key_id}/revoke")
    if answer.status == 404:
        raise OpsError(f"There is no key with the id {key_id}.", "`make keys ARGS=list` shows the ids.")
    return _body(answer, 200)


def client_environment(
    key: str, variables: Mapping[str, str], root_certificate: Path | None
) -> dict[str, str]:
    """What an OpenAI client needs to talk to this host. `root_certificate`: the CA it must trust, if any."""
    environment = {"OPENAI_BASE_URL": base_url(variables), "OPENAI_API_KEY": key}
    if root_certificate is not None:
        environment["SSL_CERT_FILE"] = str(root_certificate)
    return environment


def base_url(variables: Mapping[str, str]) -> str:
    """The API's address: the first of SITE_ADDRESS, with HTTPS_PORT where that is not 443."""
    site = (variables.get("SITE_ADDRESS") or "localhost").replace(",", " ").split()
    host = site[0].removeprefix("https://") if site else "localhost"
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    port = variables.get("HTTPS_PORT") or "443"
    return f"https://{host}/v1" if port == "443" else f"https://{host}:{port}/v1"


def _answer(out: str) -> Answer:
    try:
        said = json.loads(out)
        return Answer(int(said["status"]), said["body"])
    except (ValueError, KeyError, TypeError):
        raise OpsError(
            "The gateway's image is another version than these commands.", "Run `make up ARGS=--build`."
        ) from None


def _body(answer: Answer, expected: int) -> dict[str, Any]:
    if answer.status == expected and isinstance(answer.body, dict):
        return answer.body
    error = answer.body.get("error") if isinstance(answer.body, dict) else None
    reason = error.get("message") if isinstance(error, dict) else None
    if answer.status == 401:
        raise OpsError(
            "The gateway does not take this admin token.", "Use the token that it was started with."
        )
    fix = "Run `make status`." if answer.status >= 500 else "Correct the command; --help shows its options."
    raise OpsError(
        f"The gateway answers {answer.status}: {str(reason or 'no reason given').rstrip('.')}.", fix
    )
