"""One request as the gateway sees it: what is read from its head, and what is recorded of it on the way."""

import random
import re
import time
from dataclasses import dataclass, field
from ipaddress import ip_address

from starlette.types import Scope

from gateway.limits import Refused
from gateway.principal import Principal
from gateway.settings import Network

_WELL_FORMED_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_WANTED = frozenset(
    (
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"x-api-key",
        b"x-forwarded-for",
        b"x-request-id",
    )
)


@dataclass(slots=True)
class Exchange:
    """The record behind the access line and the metrics. Times in seconds; `started` is monotonic."""

    method: str
    raw_path: bytes
    headers: dict[bytes, bytes] = field(repr=False)  # the key is in there
    request_id: str
    client_ip: str
    started: float
    answer_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    route: str = "other"
    principal: Principal | None = None
    model: str = ""
    stream: bool = False
    status: int = 0
    refused_by: str | None = None
    refused: tuple[Refused, ...] = ()
    client_left: bool = False
    cut_off: bool = False
    upstream: str | None = None
    ttft: float | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    estimated: bool = False
    events: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @classmethod
    def begin(cls, scope: Scope, trusted: tuple[Network, ...]) -> "Exchange":
        """Reads the head; keeps a well-formed X-Request-Id and replaces any other."""
        headers = {name: value for name, value in scope["headers"] if name in _WANTED}
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        # An id must be unlike any other; it is no secret, and the generator costs a quarter of `secrets`.
        request_id = given if _WELL_FORMED_ID.fullmatch(given) else f"req-{random.getrandbits(128):032x}"
        exchange = cls(
            method=scope["method"],
            raw_path=scope["raw_path"],
            headers=headers,
            request_id=request_id,
            client_ip=_client_ip(scope, headers, trusted),
            started=time.monotonic(),
        )
        exchange.answer_headers.append((b"x-request-id", request_id.encode("ascii")))
        return exchange


def _client_ip(scope: Scope, headers: dict[bytes, bytes], trusted: tuple[Network, ...]) -> str:
    """The peer, or, behind a trusted proxy, the address that this proxy added last to X-Forwarded-For."""
    peer: str = scope["client"][0] if scope.get("client") else ""
    forwarded = headers.get(b"x-forwarded-for")
    if not forwarded or not trusted:
        return peer
    try:
        if not any(ip_address(peer) in network for network in trusted):
            return peer
        return str(ip_address(forwarded.rpartition(b",")[2].strip().decode("latin-1")))
    except ValueError:
        return peer
