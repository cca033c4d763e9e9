"""Errors in Anthropic's shape: what its official SDK raises and reads."""

import json

import anthropic
import httpx2
import pytest

from gateway.anthropic import error_body, error_type
from gateway.errors import GatewayError, ModelNotFound, Retryable
from tests.unit.gateway.test_errors import made, raisable

SDK_CLASS: dict[int, type[anthropic.APIStatusError]] = {
    400: anthropic.BadRequestError,
    401: anthropic.AuthenticationError,
    403: anthropic.PermissionDeniedError,
    404: anthropic.NotFoundError,
    408: anthropic.RequestTimeoutError,
    409: anthropic.ConflictError,
    413: anthropic.ContentTooLargeError,
    429: anthropic.RateLimitError,
    503: anthropic.ServiceUnavailableError,
    504: anthropic.GatewayTimeoutError,
}
# The reference's list: https status to type.
TYPES = {
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
    "overloaded_error",
}


@pytest.mark.parametrize("kind", raisable(), ids=lambda kind: kind.__name__)
def test_the_sdk_raises_its_own_class_and_reads_type_and_code(kind: type[GatewayError]) -> None:
    error = made(kind)

    def answer(_: httpx2.Request) -> httpx2.Response:
        headers = [*error.headers, (b"request-id", b"req-1")]
        return httpx2.Response(error.status, content=error_body(error, "req-1"), headers=headers)

    client = anthropic.Anthropic(
        api_key="key",
        base_url="http://gateway",
        max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(answer)),
    )
    with client, pytest.raises(anthropic.APIStatusError) as raised:
        client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}])
    other = anthropic.InternalServerError if error.status >= 500 else anthropic.APIStatusError
    assert isinstance(raised.value, SDK_CLASS.get(error.status, other))
    assert raised.value.request_id == "req-1"
    body = raised.value.body
    assert isinstance(body, dict)
    assert body["error"]["type"] == error_type(error.status)
    assert body["error"]["code"] == kind.code


def test_the_body_has_anthropics_shape_and_our_code() -> None:
    body = json.loads(error_body(ModelNotFound("No such model here.", param="model"), "req-1"))
    assert body == {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": "No such model here.",
            "param": "model",
            "code": "model_not_found",
        },
        "request_id": "req-1",
    }


@pytest.mark.parametrize("kind", raisable(), ids=lambda kind: kind.__name__)
def test_every_type_is_one_that_anthropic_has(kind: type[GatewayError]) -> None:
    assert error_type(kind.status) in TYPES
    if issubclass(kind, Retryable):
        assert error_type(kind.status) in {"rate_limit_error", "overloaded_error"}
