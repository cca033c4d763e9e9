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
people. Each class's docstring, or its base's, says when it is raised and what to do: docs/api.md's table is
made of them.
"""

from typing import ClassVar

import orjson

Headers = tuple[tuple[bytes, bytes], ...]
# The official SDKs wait for `Retry-After` up to a minute; for more they fall back to half a second, twice.
LONGEST_WAIT_SECONDS = 60
NO_RETRY = (b"x-should-retry", b"false")


class GatewayError(Exception):
    """Base of the tree. `message` says why and what to do; it never holds a key, a prompt or an engine's own
    text.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, param: str | None = None, headers: Headers = ()) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = headers

    def body(self) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}` as JSON bytes."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})


class InvalidRequest(GatewayError):
    status, code, type = 400, "invalid_parameter", "invalid_request_error"


class PathNotFound(InvalidRequest):
    status, code = 404, "path_not_found"


class MethodNotAllowed(InvalidRequest):
    status, code = 405, "method_not_allowed"


class RequestTimeout(InvalidRequest):
    status, code = 408, "request_timeout"


class BodyTooLarge(InvalidRequest):
    status, code = 413, "body_too_large"


class UnsupportedEncoding(InvalidRequest):
    status, code = 415, "unsupported_encoding"


class InvalidHTTP(InvalidRequest):
    code = "invalid_http"


class InvalidJSON(InvalidRequest):
    code = "invalid_json"


class BodyNotObject(InvalidRequest):
    code = "body_not_object"


class MissingModel(InvalidRequest):
    code = "missing_model"


class ModelNotFound(InvalidRequest):
    status, code = 404, "model_not_found"


class EndpointNotSupported(InvalidRequest):
    status, code = 404, "endpoint_not_supported"


class InvalidMaxTokens(InvalidRequest):
    code = "invalid_max_tokens"


class MaxTokensTooLarge(InvalidRequest):
    code = "max_tokens_too_large"


class ParameterRefused(InvalidRequest):
    code = "parameter_not_allowed"


class UnknownParameter(InvalidRequest):
    code = "unknown_parameter"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class EngineRefused(InvalidRequest):
    code = "engine_refused"


class AuthenticationFailed(GatewayError):
    status, code, type = 401, "invalid_api_key", "authentication_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers=((b"www-authenticate", b"Bearer"),))


class MissingKey(AuthenticationFailed):
    code = "missing_api_key"


class MistypedKey(AuthenticationFailed):
    code = "mistyped_api_key"


class RevokedKey(AuthenticationFailed):
    code = "revoked_api_key"


class DisabledKey(AuthenticationFailed):
    code = "disabled_api_key"


class ExpiredKey(AuthenticationFailed):
    code = "expired_api_key"


class InvalidToken(AuthenticationFailed):
    code = "invalid_token"


class PermissionDenied(GatewayError):
    status, code, type = 403, "permission_denied", "permission_error"


class ScopeMissing(PermissionDenied):
    code = "scope_missing"


class PlanMissing(PermissionDenied):
    code = "plan_missing"


class Conflict(GatewayError):
    """What the admin API is asked for does not fit what there is."""

    status, code, type = 409, "conflict", "invalid_request_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers=(NO_RETRY,))


class RequestExceedsLimit(GatewayError):
    """A request that is larger than its whole limit: it can never succeed as it is."""

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
    status, code, type = 429, "rate_limit_exceeded", "rate_limit_error"


class TokenRateLimited(RateLimited):
    code = "token_rate_limit_exceeded"


class TooManyParallel(RateLimited):
    code = "too_many_parallel_requests"


class QuotaExceeded(RateLimited):
    code = "quota_exceeded"


class TooManyFailedLogins(RateLimited):
    code = "too_many_failed_logins"


class StoreUnavailable(Retryable):
    status, code = 503, "store_unavailable"


class Overloaded(Retryable):
    status, code = 503, "overloaded"


class EngineUnavailable(Retryable):
    status, code = 503, "engine_unavailable"


class EngineTimeout(GatewayError):
    status, code = 504, "engine_timeout"


class EngineFailed(GatewayError):
    status, code = 502, "engine_error"
