"""The admin API's refusals, in the same shape as everywhere."""

import re
import secrets
from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from gateway.errors import (
    Conflict,
    GatewayError,
    InvalidRequest,
    MethodNotAllowed,
    PathNotFound,
    StoreUnavailable,
)
from gateway.store import Duplicate, Stale, StoreError

RETRY_SECONDS = 5
_UNKNOWN = re.compile(r"(\S+) is not known here;")


def add_handlers(app: FastAPI) -> None:
    """Every exception that a handler of the admin API may raise, mapped once."""
    app.add_exception_handler(GatewayError, _as_json)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StoreError, _store_failed)
    app.add_exception_handler(HTTPException, _http_error)


def answer(error: GatewayError) -> Response:
    """The refusal as a response, with a request id of its own."""
    response = Response(error.body(), error.status, media_type="application/json")
    for name, value in error.headers:
        response.headers.append(name.decode(), value.decode())
    response.headers["x-request-id"] = f"req-{secrets.token_hex(16)}"
    return response


async def _as_json(_: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return answer(error)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = _place(first["type"], first["loc"])
    problem = first["msg"].removeprefix("Value error, ")
    if unknown := _UNKNOWN.match(problem):
        # A check of the whole object: the field is in its words alone.
        param = f"{where}.{unknown[1]}" if where else unknown[1]
        return answer(InvalidRequest(f"{where}: {problem}" if where else problem, param=param))
    return answer(InvalidRequest(f"{where or 'body'}: {problem}", param=where or None))


def _place(kind: str, location: Sequence[str | int]) -> str:
    """`keys.3.name`: where in a request a value is wrong. Of broken JSON, it is known only as a position."""
    if kind == "json_invalid":
        return ""
    return ".".join(str(part) for part in location[1:] if not str(part).startswith("_"))


async def _store_failed(_: Request, error: Exception) -> Response:
    if isinstance(error, Duplicate):
        return answer(Conflict("A key with one of these ids exists already; nothing was changed."))
    if isinstance(error, Stale):
        return answer(Conflict("The key was changed by somebody else meanwhile. Look at it, and try again."))
    return answer(
        StoreUnavailable("The key store does not answer; nothing was changed.", retry_after=RETRY_SECONDS)
    )


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        refused = MethodNotAllowed("This path takes other methods; GET /admin/docs shows which.")
        refused.headers += ((b"allow", ", ".join(_methods(request)).encode("ascii")),)
        return answer(refused)
    if error.status_code == 400:
        return answer(InvalidRequest("The body cannot be read: it is too deep, or not what its type says."))
    return answer(PathNotFound(f"{error.detail}. GET /admin/docs shows what there is."))


def _methods(request: Request) -> list[str]:
    """Of every route on the path: the framework names the first one's alone."""
    path: str = request.url.path
    schema: dict[str, dict[str, object]] = request.app.openapi()["paths"]
    found = [
        method.upper()
        for pattern, methods in schema.items()
        if compile_path(pattern)[0].match(path)
        for method in methods
    ]
    return sorted(set(found))
