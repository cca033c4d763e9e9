"""Everything the gateway refuses or fails with, and its one mapping to OpenAI's error shape.

    GatewayError                        500 internal_error
    ├── InvalidRequest                  400 invalid_parameter
    │   ├── PathNotFound                404 path_not_found
    │   ├── MethodNotAllowed            405 method_not_allowed
    │   ├── RequestTimeout              408 request_timeout
    │   ├── BodyTooLarge                413 body_too_large
    │   ├── UnsupportedEncoding         415 unsupported_encoding
    │   ├── InvalidHTTP                 400 invalid_http
    │   ├── InvalidJSON                 400 invalid_json
    │   ├── BodyNotObject               400 body_not_object
    │   ├── MissingModel                400 missing_model
    │   ├── ModelNotFound               404 model_not_found
    │   ├── EndpointNotSupported        404 endpoint_not_supported
    │   ├── InvalidMaxTokens            400 invalid_max_tokens
    │   ├── MaxTokensTooLarge           400 max_tokens_too_large
    │   ├── ParameterRefused            400 parameter_not_allowed
    │   ├── UnknownParameter            400 unknown_parameter
    │   ├── ContextLengthExceeded       400 context_length_exceeded
    │   └── EngineRefused               400 engine_refused
    ├── AuthenticationFailed            401 invalid_api_key
    │   ├── MissingKey                  401 missing_api_key
    │   ├── MistypedKey                 401 mistyped_api_key
    │   ├── RevokedKey                  401 revoked_api_key
    │   ├── DisabledKey                 401 disabled_api_key
    │   ├── ExpiredKey                  401 expired_api_key
    │   └── InvalidToken                401 invalid_token
    ├── PermissionDenied                403 permission_denied
    │   ├── ScopeMissing                403 scope_missing
    │   └── PlanMissing                 403 plan_missing
    ├── Conflict                        409 conflict
    ├── RequestExceedsLimit             429 request_exceeds_limit
    ├── Retryable                       (with Retry-After)
    │   ├── RateLimited                 429 rate_limit_exceeded
    │   │   ├── TokenRateLimited        429 token_rate_limit_exceeded
    │   │   ├── TooManyParallel         429 too_many_parallel_requests
    │   │   ├── QuotaExceeded           429 quota_exceeded
    │   │   └── TooManyFailedLogins     429 too_many_failed_logins
    │   ├── StoreUnavailable            503 store_unavailable
    │   ├── Overloaded                  503 overloaded
    │   └── EngineUnavailable           503 engine_unavailable
    ├── EngineTimeout                   504 engine_timeout
    └── EngineFailed                    502 engine_error

The status decides which class the official SDKs raise; `code` is stable and for programs, `message` is for
people. The first paragraph of each class's docstring says when it is raised and what to do: docs/api.md's
table is made of them.
"""

from typing import ClassVar

import orjson

Headers = tuple[tuple[bytes, bytes], ...]
# The official SDKs wait for `Retry-After` up to a minute; for more they fall back to half a second, twice.
LONGEST_WAIT_SECONDS = 60
NO_RETRY = (b"x-should-retry", b"false")


class GatewayError(Exception):
    """A fault of the gateway's own, logged under the request id.

    And the base of the tree: `message` says why and what to do; it never holds a key, a prompt or an engine's
    own text.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, param: str | None = None, headers: Headers = ()) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = headers
        # Tenant and id of a key that is refused although its secret was right.
        self.owner: tuple[str, str] | None = None

    def body(self) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}` as JSON bytes."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})


class InvalidRequest(GatewayError):
    """A field of the body has a wrong kind or value; `param` names it."""

    status, code, type = 400, "invalid_parameter", "invalid_request_error"


class PathNotFound(InvalidRequest):
    """Nothing is served at this path; paths are matched exactly."""

    status, code = 404, "path_not_found"


class MethodNotAllowed(InvalidRequest):
    """The path takes another method: `allow` names it."""

    status, code = 405, "method_not_allowed"


class RequestTimeout(InvalidRequest):
    """The body did not arrive in time."""

    status, code = 408, "request_timeout"


class BodyTooLarge(InvalidRequest):
    """The body is larger than the operator allows."""

    status, code = 413, "body_too_large"


class UnsupportedEncoding(InvalidRequest):
    """The body is compressed: send it as it is."""

    status, code = 415, "unsupported_encoding"


class InvalidHTTP(InvalidRequest):
    """Not one HTTP/1.1 request: broken, a head over 64 KiB, or `Upgrade`."""

    code = "invalid_http"


class InvalidJSON(InvalidRequest):
    """The body is not JSON that every reader reads alike: broken, a key twice, NaN or an infinity, a lone
    surrogate, an integer beyond 64 bits, too deep, or more than 50,000 objects and lists.
    """

    code = "invalid_json"


class BodyNotObject(InvalidRequest):
    """The body is JSON, but no object."""

    code = "body_not_object"


class MissingModel(InvalidRequest):
    """`model` is missing: `GET /v1/models` lists what you may use."""

    code = "missing_model"


class ModelNotFound(InvalidRequest):
    """There is no such model for this key, or the engine does not serve it now."""

    status, code = 404, "model_not_found"


class EndpointNotSupported(InvalidRequest):
    """The model that is served, or the engine's version, does not have this route."""

    status, code = 404, "endpoint_not_supported"


class InvalidMaxTokens(InvalidRequest):
    """An output limit is not a whole number from 1."""

    code = "invalid_max_tokens"


class MaxTokensTooLarge(InvalidRequest):
    """An output limit is beyond the model's context or, where the plan refuses, beyond its cap."""

    code = "max_tokens_too_large"


class ParameterRefused(InvalidRequest):
    """The plan, or every plan, forbids a parameter or its value; the message says why."""

    code = "parameter_not_allowed"


class UnknownParameter(InvalidRequest):
    """The plan refuses fields that the route does not have; the message names the nearest that it has."""

    code = "unknown_parameter"


class ContextLengthExceeded(InvalidRequest):
    """The prompt and the output do not fit the model's context: shorten the prompt."""

    code = "context_length_exceeded"


class EngineRefused(InvalidRequest):
    """The engine does not take a parameter or message; `param` names it where the engine said which."""

    code = "engine_refused"


class AuthenticationFailed(GatewayError):
    """The key is not one of this service's."""

    status, code, type = 401, "invalid_api_key", "authentication_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers=((b"www-authenticate", b"Bearer"),))


class MissingKey(AuthenticationFailed):
    """There is no key in the request."""

    code = "missing_api_key"


class MistypedKey(AuthenticationFailed):
    """The key has a typo: its checksum does not fit."""

    code = "mistyped_api_key"


class RevokedKey(AuthenticationFailed):
    """The key was revoked: ask your operator for another."""

    code = "revoked_api_key"


class DisabledKey(AuthenticationFailed):
    """The key is switched off for now: ask your operator."""

    code = "disabled_api_key"


class ExpiredKey(AuthenticationFailed):
    """The key's time is over: ask your operator for another."""

    code = "expired_api_key"


class InvalidToken(AuthenticationFailed):
    """The JWT is not valid here: its signature, issuer, audience, time or claims; the message says which."""

    code = "invalid_token"


class PermissionDenied(GatewayError):
    """The key is known, but may not do this."""

    status, code, type = 403, "permission_denied", "permission_error"


class ScopeMissing(PermissionDenied):
    """The key may not use this route."""

    code = "scope_missing"


class PlanMissing(PermissionDenied):
    """The key's plan does not exist any more: ask your operator."""

    code = "plan_missing"


class Conflict(GatewayError):
    """The admin API only: what is asked for does not fit what there is."""

    status, code, type = 409, "conflict", "invalid_request_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers=(NO_RETRY,))


class RequestExceedsLimit(GatewayError):
    """The request alone is larger than a whole limit: it can never succeed as it is. Shorten the prompt, or
    lower `max_tokens` or `n`.
    """

    status, code, type = 429, "request_exceeds_limit", "rate_limit_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers=(NO_RETRY,))


class Retryable(GatewayError):
    """A refusal that passes by itself. `retry_after` is in whole seconds, sent as `Retry-After`; where it is
    longer than an SDK waits, the SDK is told not to try again.
    """

    def __init__(self, message: str, *, retry_after: int, headers: Headers = ()) -> None:
        wait = (b"retry-after", b"%d" % retry_after)
        told = (wait, NO_RETRY) if retry_after > LONGEST_WAIT_SECONDS else (wait,)
        super().__init__(message, headers=(*told, *headers))
        self.retry_after = retry_after


class RateLimited(Retryable):
    """The requests of this minute are used up: wait `retry-after` seconds; the SDK does so by itself."""

    status, code, type = 429, "rate_limit_exceeded", "rate_limit_error"


class TokenRateLimited(RateLimited):
    """The tokens of this minute do not suffice: wait `retry-after` seconds."""

    code = "token_rate_limit_exceeded"


class TooManyParallel(RateLimited):
    """As many requests as allowed run at this moment: wait for one to end."""

    code = "too_many_parallel_requests"


class QuotaExceeded(RateLimited):
    """The tokens of this day or month are used up: `retry-after` says until when."""

    code = "quota_exceeded"


class TooManyFailedLogins(RateLimited):
    """Too many wrong keys came from your address: correct yours. A right one is still served."""

    code = "too_many_failed_logins"


class StoreUnavailable(Retryable):
    """Keys and usage cannot be looked up or changed at the moment, or a token's issuer does not answer."""

    status, code = 503, "store_unavailable"


class Overloaded(Retryable):
    """More is asked of the gateway than it can hold at the moment."""

    status, code = 503, "overloaded"


class EngineUnavailable(Retryable):
    """No engine is running at the moment."""

    status, code = 503, "engine_unavailable"


class EngineTimeout(GatewayError):
    """The engine was too slow."""

    status, code = 504, "engine_timeout"


class EngineFailed(GatewayError):
    """The engine failed on this request."""

    status, code = 502, "engine_error"
