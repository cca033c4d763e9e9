"""The admin API, on the container's own loopback: keys are made, listed and revoked here."""

import hmac
import secrets
from datetime import UTC, datetime
from typing import Annotated

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from gateway.errors import AuthenticationFailed, GatewayError, InvalidRequest, PathNotFound, StoreUnavailable
from gateway.identity import KeyDirectory
from gateway.store import KeyRecord, StoreError

Label = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@/-]*$")]
# What every part can hold as a date, in any time zone.
Expiry = Annotated[
    AwareDatetime, Field(gt=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(9000, 1, 1, tzinfo=UTC))
]


class NewKey(BaseModel):
    """What a key is made of. `requests_per_minute` null: the gateway's default; `expires_at` null: never."""

    model_config = ConfigDict(extra="forbid")

    name: Label
    tenant: Label = "default"
    requests_per_minute: int | None = Field(None, ge=1, le=1_000_000)
    expires_at: Expiry | None = None


class KeyView(BaseModel):
    """A key without anything that would let one use it."""

    id: str
    name: str
    tenant: str
    requests_per_minute: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    @classmethod
    def of(cls, record: KeyRecord) -> "KeyView":
        return cls(
            id=record.id,
            name=record.name,
            tenant=record.tenant,
            requests_per_minute=record.requests_per_minute,
            created_at=datetime.fromtimestamp(record.created_at, UTC),
            expires_at=_moment(record.expires_at),
            revoked_at=_moment(record.revoked_at),
        )


class CreatedKey(KeyView):
    """A new key with its text, which is shown this once."""

    key: str


class KeyList(BaseModel):
    keys: list[KeyView]


class TokenFirst:
    """Asks for the token before anything of a request is read: without it there is no body to hold, no route
    to find and no schema to see.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._authorized(Headers(scope=scope).get("authorization", "")):
            await self._app(scope, receive, send)
            return
        refused = AuthenticationFailed("The admin API wants its own token, the file `admin_token`.")
        await _answer(refused)(scope, receive, send)

    def _authorized(self, header: str) -> bool:
        scheme, _, given = header.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), self._token)


def create_admin_app(directory: KeyDirectory, *, token: str, log: FilteringBoundLogger) -> FastAPI:
    """The admin application. Every request wants `Authorization: Bearer <admin token>`."""
    app = FastAPI(title="Gatehouse admin", docs_url=None, redoc_url=None)
    app.add_middleware(TokenFirst, token=token)
    app.add_exception_handler(GatewayError, _as_json)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StoreError, _store_gone)
    app.add_exception_handler(HTTPException, _http_error)

    @app.post("/admin/keys", status_code=201)
    async def create_key(new: NewKey) -> CreatedKey:
        expires_at = new.expires_at.timestamp() if new.expires_at else None
        text, record = await directory.create(
            name=new.name,
            tenant=new.tenant,
            requests_per_minute=new.requests_per_minute,
            expires_at=expires_at,
        )
        log.info("key_created", key_id=record.id, tenant=record.tenant)
        return CreatedKey(key=text, **KeyView.of(record).model_dump())

    @app.get("/admin/keys")
    async def list_keys() -> KeyList:
        return KeyList(keys=[KeyView.of(record) for record in directory.all()])

    @app.post("/admin/keys/{key_id}/revoke")
    async def revoke_key(key_id: str) -> KeyView:
        record = await directory.revoke(key_id)
        if record is None:
            raise PathNotFound("There is no key with this id. `make keys ARGS=list` shows all.")
        log.info("key_revoked", key_id=record.id, tenant=record.tenant)
        return KeyView.of(record)

    return app


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _answer(error: GatewayError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error.headers}
    headers["x-request-id"] = f"req-{secrets.token_hex(16)}"
    return Response(error.body(), error.status, headers, media_type="application/json")


async def _as_json(_: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return _answer(error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    # Numbers: where in the text the JSON is broken.
    where = ".".join(part for part in first["loc"] if isinstance(part, str) and part != "body")
    return await _as_json(request, InvalidRequest(f"{where or 'body'}: {first['msg']}", param=where or None))


async def _store_gone(request: Request, _: Exception) -> Response:
    return await _as_json(
        request, StoreUnavailable("The key store does not answer; nothing was changed.", retry_after=5)
    )


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return await _as_json(request, PathNotFound(f"{error.detail}. The admin API has /admin/keys."))
