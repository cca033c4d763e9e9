"""What an engine's error means for the client. Its own text can hold the client's input and paths on the
server, so it is classified and never passed on.
"""

import re
from typing import Any

import jiter

from gateway.errors import (
    NO_RETRY,
    ContextLengthExceeded,
    EndpointNotSupported,
    EngineFailed,
    EngineRefused,
    GatewayError,
    ModelNotFound,
)
from gateway.upstreams import unavailable

_PARAM = re.compile(r"[a-z][a-z0-9_.]{0,63}")
# What vLLM names as `param` although no request has such a field: the prompt, measured.
_INPUT = ("input_tokens", "input_text")
_NOT_FIELDS = ("body", *_INPUT)
_NO_ROUTE = re.compile(r"The model does not support [\w ]{1,40} API")
_CONTEXT = re.compile(r"context length|input_tokens|maximum model length|max_model_len", re.IGNORECASE)


def from_reply(status: int, body: bytes) -> GatewayError:
    """For a reply whose status is not 200, or whose 200 holds an error."""
    try:
        payload = jiter.from_json(body)
    except ValueError:
        payload = None
    error = payload.get("error") if isinstance(payload, dict) else None
    return from_error(error, status)


def find_error(body: bytes) -> Any:
    """The top-level `error` of a reply that says 200; None where it has none. `body` may be cut off."""
    if b'"error"' not in body:
        return None
    try:
        payload = jiter.from_json(body, partial_mode=True)
    except ValueError:
        return None
    return payload.get("error") if isinstance(payload, dict) else None


def from_error(error: Any, status: int) -> GatewayError:
    """From an `error` value; its own `code`, an HTTP status, tells more than a 200 around it."""
    fields = error if isinstance(error, dict) else {}
    code = fields.get("code")
    if isinstance(code, int) and 400 <= code <= 599:
        status = code
    if status == 501 or (status < 500 and _says(fields, _NO_ROUTE)) or (status == 404 and not fields):
        return EndpointNotSupported("The engine does not have this route for the model that it serves.")
    named = fields.get("param") not in (None, "model")
    if status in (400, 422) or (status == 404 and named):
        return _refused(fields)
    if status == 404:
        return ModelNotFound("The engine does not serve this model now.", param="model")
    if status == 503:
        return unavailable()
    if status == 401:
        return EngineFailed(
            "The engine did not accept the gateway's own key. The operator must mend this.",
            headers=(NO_RETRY,),
        )
    return EngineFailed("The engine failed on this request.")


def _says(fields: dict[str, Any], what: re.Pattern[str]) -> bool:
    message = fields.get("message")
    return isinstance(message, str) and what.search(message) is not None


def _refused(fields: dict[str, Any]) -> GatewayError:
    param = fields.get("param")
    field = param.removeprefix("body.") if isinstance(param, str) else ""
    named = field if _PARAM.fullmatch(field) and field not in _NOT_FIELDS else None
    if param in _INPUT or _says(fields, _CONTEXT):
        return ContextLengthExceeded(
            "The prompt and the output asked for do not fit the model's context. "
            "Shorten the prompt or lower max_tokens.",
            param=named,
        )
    where = f"parameter `{named}`" if named else "a parameter or message"
    return EngineRefused(f"The engine refused the request: {where} is not valid for this model.", param=named)
