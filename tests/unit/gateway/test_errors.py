"""The tree of errors: each with a stable code of its own, drawn where it is defined; what SDKs make of it."""

import inspect
import json
import re
from collections.abc import Iterator

import httpx2
import openai
import pytest

from gateway import errors
from gateway.errors import AuthenticationFailed, GatewayError, Retryable

SDK_CLASS: dict[int, type[openai.APIStatusError]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    404: openai.NotFoundError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    502: openai.InternalServerError,
    503: openai.InternalServerError,
    504: openai.InternalServerError,
}


def tree(root: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def raisable() -> list[type[GatewayError]]:
    return [kind for kind in tree(GatewayError) if kind is not Retryable]


def made(kind: type[GatewayError]) -> GatewayError:
    return kind("why", retry_after=7) if issubclass(kind, Retryable) else kind("why")


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in raisable()]
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)


def test_every_class_stands_in_the_drawing_under_its_parent() -> None:
    lines = (inspect.getdoc(errors) or "").splitlines()
    found = [re.fullmatch(r"([ │├└─]*)([A-Z]\w+) {2,}(.+)", line) for line in lines]
    drawn = [(len(line[1]), line[2], line[3]) for line in found if line]
    parents: list[tuple[int, str]] = []
    told = {}
    for depth, name, says in drawn:
        parents = [known for known in parents if known[0] < depth]
        told[name] = (parents[-1][1] if parents else None, says)
        parents.append((depth, name))
    assert told == {
        kind.__name__: (
            None if kind is GatewayError else (kind.__base__ or GatewayError).__name__,
            "(with Retry-After)" if kind is Retryable else f"{kind.status} {kind.code}",
        )
        for kind in tree(GatewayError)
    }


@pytest.mark.parametrize("kind", raisable(), ids=lambda kind: kind.__name__)
def test_the_body_has_the_shape_of_openais_errors(kind: type[GatewayError]) -> None:
    error = json.loads(made(kind).body())["error"]
    assert error == {"message": "why", "type": kind.type, "param": None, "code": kind.code}


def test_the_parameter_at_fault_is_named() -> None:
    assert json.loads(errors.InvalidRequest("why", param="n").body())["error"]["param"] == "n"


@pytest.mark.parametrize("kind", raisable(), ids=lambda kind: kind.__name__)
def test_the_sdk_raises_its_own_class_for_the_status_and_reads_the_code(kind: type[GatewayError]) -> None:
    error = made(kind)

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(error.status, content=error.body(), headers=list(error.headers))

    client = openai.OpenAI(
        api_key="key",
        base_url="http://gateway/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(answer)),
    )
    with client, pytest.raises(openai.APIStatusError) as raised:
        client.models.list()
    assert type(raised.value) is SDK_CLASS.get(kind.status, openai.APIStatusError)
    assert raised.value.code == kind.code
    assert raised.value.type == kind.type


@pytest.mark.parametrize(
    ("statuses", "named"),
    [
        (range(400, 429), "invalid_request_error"),
        (range(429, 430), "rate_limit_error"),
        (range(500, 600), "server_error"),
    ],
)
def test_the_type_follows_from_the_status(statuses: range, named: str) -> None:
    kinds = [kind for kind in raisable() if kind.status in statuses]
    assert kinds
    for kind in kinds:
        assert kind.type == ("authentication_error" if issubclass(kind, AuthenticationFailed) else named)


@pytest.mark.parametrize(
    "kind", [kind for kind in raisable() if issubclass(kind, Retryable)], ids=lambda kind: kind.__name__
)
def test_a_refusal_that_passes_says_when(kind: type[Retryable]) -> None:
    assert (b"retry-after", b"7") in kind("why", retry_after=7).headers


def test_every_429_and_503_says_when() -> None:
    assert all(issubclass(kind, Retryable) == (kind.status in (429, 503)) for kind in raisable())


def test_every_401_names_the_scheme() -> None:
    for kind in raisable():
        named = (b"www-authenticate", b"Bearer") in made(kind).headers
        assert named == (kind.status == 401)
