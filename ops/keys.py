"""`make keys`: what the running gateway's admin API does, as functions; and what a client needs of a key."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ops.errors import OpsError
from ops.keys_transport import Answer, Transport

Json = dict[str, Any]

_ID = re.compile(r"[A-Za-z0-9-]{1,40}")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_LIST_FIX = "`make keys ARGS=list` shows the ids."


class Refused(OpsError):
    """The gateway answered, and said no. `reason` is its own sentence, without the full stop."""

    def __init__(self, status: int, reason: str, fix: str) -> None:
        super().__init__(f"The gateway answers {status}: {reason}.", fix)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Admin:
    """The admin API through one transport. Every method raises OpsError, and Refused where the gateway said
    no.
    """

    transport: Transport

    def create(self, request: Mapping[str, Any]) -> Json:
        """The new key's record with its `key`, which is never shown again."""
        return self._call("POST", "/admin/keys", body=request)

    def keys(self, **filters: str | None) -> list[Json]:
        """The keys' records, without secrets, oldest first."""
        return list(self._pages("/admin/keys", filters))

    def export(self) -> list[Json]:
        """The keys as `load` takes them: with digests, without secrets."""
        return list(self._pages("/admin/keys/export", {}))

    def load(self, keys: Sequence[Mapping[str, Any]], *, dry_run: bool) -> Json:
        """Takes in all keys or none; what the gateway says of each is in its `keys`."""
        return self._call("POST", "/admin/keys/import", body={"keys": list(keys), "dry_run": dry_run})

    def show(self, key_id: str) -> Json:
        return self._of_key("GET", key_id)

    def change(self, key_id: str, changes: Mapping[str, Any]) -> Json:
        return self._of_key("PATCH", key_id, body=changes)

    def rotate(self, key_id: str, overlap_seconds: float) -> Json:
        """The record with its new `key`, which is never shown again."""
        return self._of_key("POST", key_id, "/rotate", {"overlap_seconds": overlap_seconds})

    def disable(self, key_id: str) -> Json:
        return self._of_key("POST", key_id, "/disable")

    def enable(self, key_id: str) -> Json:
        return self._of_key("POST", key_id, "/enable")

    def revoke(self, key_id: str) -> Json:
        return self._of_key("POST", key_id, "/revoke")

    def limits(self, key_id: str) -> Json:
        """Its plan and `limits`, each with what of it is used."""
        return self._call("GET", f"/admin/limits/{_checked(key_id)}", missing=_no_key(key_id))

    def usage(self, **query: str | None) -> Json:
        return self._call("GET", _path("/admin/usage", query))

    def audit(self, **query: str | None) -> Json:
        return self._call("GET", _path("/admin/audit", query))

    def plans(self) -> Json:
        return self._call("GET", "/admin/plans")

    def reload_plans(self) -> Json:
        return self._call("POST", "/admin/plans/reload")

    def explain(self, request_id: str) -> Json:
        if not _REQUEST_ID.fullmatch(request_id) or not request_id.strip("."):
            raise OpsError(
                f"{request_id!r} is not a request's id.",
                "It stands in the answer's x-request-id and in the log.",
            )
        missing = OpsError(
            f"No refusal of {request_id} is remembered.",
            "The gateway keeps the last 10,000 since its start; `make logs ARGS=gateway` has every request.",
        )
        return self._call("GET", f"/admin/explain/{quote(request_id)}", missing=missing)

    def _of_key(
        self, method: str, key_id: str, action: str = "", body: Mapping[str, Any] | None = None
    ) -> Json:
        path = f"/admin/keys/{_checked(key_id)}{action}"
        return self._call(method, path, body=body, missing=_no_key(key_id))

    def _pages(self, path: str, filters: Mapping[str, str | None]) -> Iterator[Json]:
        after: str | None = None
        while True:
            page = self._call("GET", _path(path, {**filters, "after": after}))
            yield from page.get("keys") or ()
            after = page.get("next")
            if after is None:
                return

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        missing: OpsError | None = None,
    ) -> Json:
        """The answer's object. `missing`: what a 404 means."""
        answer = self.transport.call(method, path, body)
        if answer.status == 404 and missing is not None:
            raise missing
        if answer.status in (200, 201) and isinstance(answer.body, dict):
            return answer.body
        raise _refusal(answer)


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


def _checked(key_id: str) -> str:
    if not _ID.fullmatch(key_id):
        raise OpsError(f"{key_id!r} is not a key's id.", _LIST_FIX)
    return key_id


def _no_key(key_id: str) -> OpsError:
    return OpsError(f"There is no key with the id {key_id}.", _LIST_FIX)


def _path(path: str, query: Mapping[str, str | None]) -> str:
    given = {name.rstrip("_"): value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, quote_via=quote)}" if given else path


def _refusal(answer: Answer) -> OpsError:
    error = answer.body.get("error") if isinstance(answer.body, dict) else None
    reason = error.get("message") if isinstance(error, dict) else None
    if answer.status == 401:
        return OpsError(
            "The gateway does not take this admin token.", "Use the token that it was started with."
        )
    fix = "Run `make status`." if answer.status >= 500 else "Correct the command; --help shows its options."
    return Refused(answer.status, str(reason or "no reason given").rstrip("."), fix)
