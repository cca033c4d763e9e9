"""An issuer of tokens: a small HTTP server whose key set rotates, hangs, leads elsewhere, lies, is huge."""

import gzip
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jose import jwk, jws

AUDIENCE = "gatehouse"
_CURVES: Mapping[str, Callable[[], ec.EllipticCurve]] = {
    "ES256": ec.SECP256R1,
    "ES384": ec.SECP384R1,
    "ES512": ec.SECP521R1,
}


@cache
def _private_pem(algorithm: str, number: int, bits: int) -> str:
    """Made once for each `number`: an RSA key takes a while."""
    del number
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if algorithm.startswith("RS"):
        key = rsa.generate_private_key(65537, bits)
    else:
        key = ec.generate_private_key(_CURVES[algorithm]())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


@dataclass(frozen=True)
class SigningKey:
    """A private key. Two with the same `number` are the same."""

    kid: str
    algorithm: str = "ES256"
    number: int = 0
    bits: int = 2048

    @property
    def pem(self) -> str:
        return _private_pem(self.algorithm, self.number, self.bits)

    @property
    def public_pem(self) -> str:
        pem: bytes = jwk.construct(self.pem, self.algorithm).public_key().to_pem()
        return pem.decode()

    def public(self, **changes: Any) -> dict[str, Any]:
        """The JWK, with these entries changed; None removes one."""
        made = jwk.construct(self.pem, self.algorithm).public_key().to_dict()
        whole = made | {"kid": self.kid, "use": "sig"} | changes
        return {name: value for name, value in whole.items() if value is not None}

    def sign(self, claims: Mapping[str, Any] | bytes, **head: Any) -> bytes:
        """A token; `head` are further entries of its head."""
        signed: str = jws.sign(claims, self.pem, headers={"kid": self.kid} | head, algorithm=self.algorithm)
        return signed.encode()


@dataclass
class Issuer:
    """`start` and `close` it. Its behaviour is what `answer` does; `asked` counts the requests."""

    keys: list[SigningKey] = field(default_factory=lambda: [SigningKey("first")])
    published: list[dict[str, Any]] | None = None
    answer: Callable[["Issuer", BaseHTTPRequestHandler], None] | None = None
    asked: int = 0
    headers: list[Mapping[str, str]] = field(default_factory=list)
    url: str = "https://issuer.example"
    clock: Callable[[], float] = time.time

    def start(self) -> None:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                issuer.headers.append({name.lower(): value for name, value in self.headers.items()})
                (issuer.answer or key_set)(issuer, self)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/jwks.json"

    def rotate(self, key: SigningKey) -> None:
        """Another key, and none of those before."""
        self.keys = [key]

    def body(self) -> bytes:
        keys = [key.public() for key in self.keys] if self.published is None else self.published
        return json.dumps({"keys": keys}).encode()

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Good ones, with these changed; None removes one."""
        now = self.clock()
        whole = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "user-1",
            "tenant": "acme",
            "iat": int(now),
            "exp": int(now) + 600,
        } | changes
        return {name: value for name, value in whole.items() if value is not None}

    def token(self, *, key: SigningKey | None = None, **changes: Any) -> bytes:
        """A token of its newest key."""
        return (key or self.keys[-1]).sign(self.claims(**changes))


# What it may do in place of an answer.


def key_set(issuer: Issuer, request: BaseHTTPRequestHandler) -> None:
    reply(request, 200, issuer.body())


def reply(request: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    request.send_response(status)
    for name, value in {"content-length": str(len(body)), **headers}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)


def fails(issuer: Issuer, request: BaseHTTPRequestHandler) -> None:
    reply(request, 500, b"no")


def redirects(issuer: Issuer, request: BaseHTTPRequestHandler) -> None:
    """To itself, where the keys would be given."""
    if request.path == "/elsewhere":
        key_set(issuer, request)
    else:
        reply(request, 302, b"", location=f"{issuer.url}/elsewhere")


def talks_nonsense(issuer: Issuer, request: BaseHTTPRequestHandler) -> None:
    reply(request, 200, b"<html>Welcome</html>")


def is_huge(issuer: Issuer, request: BaseHTTPRequestHandler) -> None:
    """Good keys, and no end of spaces."""
    request.send_response(200)
    request.end_headers()
    try:
        request.wfile.write(issuer.body())
        for _ in range(1000):
            request.wfile.write(b" " * 65536)
    except OSError:
        pass


@cache
def _packed(body: bytes) -> bytes:
    return gzip.compress(body + b" " * 50_000_000, 9)


def is_a_bomb(issuer: Issuer, request: BaseHTTPRequestHandler) -> None:
    """Small as it travels, fifty megabytes once it is unpacked."""
    reply(request, 200, _packed(issuer.body()), **{"content-encoding": "gzip"})


def drips(issuer: Issuer, request: BaseHTTPRequestHandler) -> None:
    """A byte now and then, for a minute."""
    request.send_response(200)
    request.end_headers()
    try:
        for byte in issuer.body() + b" " * 600:
            request.wfile.write(bytes([byte]))
            time.sleep(0.1)
    except OSError:
        pass
