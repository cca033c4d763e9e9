"""The tree of errors: each with a stable code of its own, drawn where it is defined; what SDKs make of it."""

import inspect
import json
import re
from collections.abc import Callable, Iterator

import httpx2
import openai
import pytest

from docs import generate
from gateway import errors
from gateway.errors import (
    LONGEST_WAIT_SECONDS,
    NO_RETRY,
    Conflict,
    GatewayError,
    RequestExceedsLimit,
    Retryable,
)

# The SDKs' own header, which stands above Retry-After: so that a test need not wait.
NO_WAIT = (b"retry-after-ms", b"1")
SDK_CLASS: dict[int, type[openai.APIStatusError]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
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


RETRYABLE = [kind for kind in raisable() if issubclass(kind, Retryable)]


def made(kind: type[GatewayError], seconds: int = 7) -> GatewayError:
    return kind("why", retry_after=seconds) if issubclass(kind, Retryable) else kind("why")


def sdk(answer: Callable[[httpx2.Request], httpx2.Response], max_retries: int) -> openai.OpenAI:
    return openai.OpenAI(
        api_key="key",
        base_url="http://gateway/v1",
        max_retries=max_retries,
        http_client=httpx2.Client(transport=httpx2.MockTransport(answer)),
    )


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

    with sdk(answer, max_retries=0) as client, pytest.raises(openai.APIStatusError) as raised:
        client.models.list()
    assert type(raised.value) is SDK_CLASS.get(kind.status, openai.APIStatusError)
    assert type(raised.value).__name__ == generate.sdk_class(kind.status), "the API page says another"
    assert raised.value.code == kind.code
    assert raised.value.type == kind.type


@pytest.mark.parametrize(
    ("statuses", "named"),
    [
        ({400, 404, 405, 408, 409, 413, 415}, "invalid_request_error"),
        ({401}, "authentication_error"),
        ({403}, "permission_error"),
        ({429}, "rate_limit_error"),
        ({500, 502, 503, 504}, "server_error"),
    ],
)
def test_the_type_follows_from_the_status(statuses: set[int], named: str) -> None:
    kinds = [kind for kind in raisable() if kind.status in statuses]
    assert {kind.status for kind in kinds} == statuses
    assert {kind.type for kind in kinds} == {named}


def test_every_class_in_the_tree_is_on_the_api_page_once_and_says_when_it_is_raised() -> None:
    assert list(generate.raised()) == raisable()
    assert len({generate.row(kind) for kind in raisable()}) == len(raisable())


@pytest.mark.parametrize("kind", RETRYABLE, ids=lambda kind: kind.__name__)
def test_a_refusal_that_passes_says_when(kind: type[Retryable]) -> None:
    error = kind("why", retry_after=7)
    assert error.headers == ((b"retry-after", b"7"),)
    assert error.retry_after == 7


@pytest.mark.parametrize("kind", RETRYABLE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(("seconds", "waits"), [(60, True), (61, False), (86_400, False)])
def test_the_sdk_is_told_not_to_retry_what_it_would_not_wait_for(
    kind: type[Retryable], seconds: int, *, waits: bool
) -> None:
    headers = kind("why", retry_after=seconds).headers
    assert (b"retry-after", b"%d" % seconds) in headers
    assert (NO_RETRY in headers) != waits


def test_every_503_says_when_and_every_429_too_unless_it_can_never_succeed() -> None:
    for kind in raisable():
        if kind is not RequestExceedsLimit:
            assert issubclass(kind, Retryable) == (kind.status in (429, 503))


@pytest.mark.parametrize("kind", [RequestExceedsLimit, Conflict])
def test_what_no_retry_can_mend_says_so(kind: type[GatewayError]) -> None:
    assert made(kind).headers == (NO_RETRY,)


@pytest.mark.parametrize("kind", raisable(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seconds", [1, 3600])
def test_the_sdk_tries_again_only_where_that_can_help(kind: type[GatewayError], seconds: int) -> None:
    error = made(kind, seconds)
    tries = 0

    def answer(_: httpx2.Request) -> httpx2.Response:
        nonlocal tries
        tries += 1
        return httpx2.Response(error.status, content=error.body(), headers=[*error.headers, NO_WAIT])

    with sdk(answer, max_retries=1) as client, pytest.raises(openai.APIStatusError):
        client.models.list()
    helps = kind.status in (408, 429) or kind.status >= 500
    if kind is RequestExceedsLimit or (issubclass(kind, Retryable) and seconds > LONGEST_WAIT_SECONDS):
        helps = False
    assert tries == (2 if helps else 1)


def test_every_401_names_the_scheme() -> None:
    for kind in raisable():
        named = (b"www-authenticate", b"Bearer") in made(kind).headers
        assert named == (kind.status == 401)
