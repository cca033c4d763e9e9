"""Errors in Anthropic's shape, for the routes that speak its dialect."""

from collections.abc import Mapping
from types import MappingProxyType

import orjson

from gateway.errors import GatewayError

# As Anthropic's reference has them. Any other is `api_error` from 500 on, `invalid_request_error` below.
_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
)


def error_type(status: int) -> str:
    """Anthropic's name for an HTTP status."""
    return _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def error_body(error: GatewayError, request_id: str) -> bytes:
    """`{"type": "error", "error": {"type", "message"}, "request_id"}` as JSON bytes. `error` has the `code`
    and `param` of the OpenAI shape too: Anthropic's types are too few to tell our errors apart.
    """
    fields = {
        "type": error_type(error.status),
        "message": error.message,
        "param": error.param,
        "code": error.code,
    }
    return orjson.dumps({"type": "error", "error": fields, "request_id": request_id})
