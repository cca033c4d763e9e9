"""Who may use the admin API, and who says that they do."""

import base64
import binascii
import hmac
from typing import Annotated

from fastapi import Depends, Header
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admin_errors import answer
from gateway.errors import AuthenticationFailed

# A browser asks for a password only where it is told that one would help.
_BASIC = (b"www-authenticate", b'Basic realm="Gatehouse admin", charset="UTF-8"')
DEFAULT_ACTOR = "admin"
MAX_ACTOR_CHARS = 100


class TokenFirst:
    """Asks for the token before anything of a request is read: without it there is no body to hold, no route
    to find and no schema to see.

    As a bearer token, for everything; as the password of Basic, for GET alone: a browser may look, and a page
    of another site that makes it send something changes nothing.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._authorized(scope):
            await self._app(scope, receive, send)
            return
        refused = AuthenticationFailed("The admin API wants its own token, the file `admin_token`.")
        if scope["method"] == "GET":
            refused.headers += (_BASIC,)
        await answer(refused)(scope, receive, send)

    def _authorized(self, scope: Scope) -> bool:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        token = given.encode("latin-1")
        if scheme.lower() == "basic" and scope["method"] == "GET":
            return hmac.compare_digest(_password(token), self._token)
        return scheme.lower() == "bearer" and hmac.compare_digest(token, self._token)


def _password(credentials: bytes) -> bytes:
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _actor(
    x_gatehouse_actor: Annotated[
        str, Header(max_length=MAX_ACTOR_CHARS, description="Who asks, for the audit log; as they say.")
    ] = DEFAULT_ACTOR,
) -> str:
    name = x_gatehouse_actor.encode("latin-1").decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in name) or DEFAULT_ACTOR


Actor = Annotated[str, Depends(_actor)]
