"""The allow-list of paths: what is exactly on it is served, all else does not exist."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.endpoints import ENDPOINTS, Kind, match
from gateway.errors import MethodNotAllowed, PathNotFound

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "FOO")
EXACT = [endpoint for endpoint in ENDPOINTS.values() if endpoint.kind is not Kind.MODEL]
# Other spellings of an allowed path, and routes of the engine that must not be reached.
TRICKS = (
    "//v1/models",
    "/v1//models",
    "/v1/models/",
    "/v1/./models",
    "/v1/x/../models",
    "/v1/chat/completions/",
    "/v1/chat/completions%2f",
    "/v1%2fmodels",
    "/%761/models",
    "/V1/models",
    "/v1/chat/completions;x",
    "/v1/chat/completions?x",
    "/v1/chat/completions#",
    "v1/models",
    "http://a/v1/models",
    "/v1/chat/completions\x00",
    "/invocations",
    "/inference/v1/generate",
    "/tokenize",
    "/detokenize",
    "/metrics",
    "/health",
    "/ping",
    "/version",
    "/load",
    "/docs",
    "/openapi.json",
    "/admin/keys",
    "/v1/messages",
    "/v1/responses",
    "/v1/completions/render",
    "/scale_elastic_ep",
    "/collective_rpc",
    "/v1/load_lora_adapter",
    "",
    "/",
    "*",
)


@pytest.mark.parametrize("endpoint", EXACT, ids=lambda endpoint: endpoint.path)
def test_an_allowed_path_is_found_with_its_method_only(endpoint: object) -> None:
    found = next(e for e in EXACT if e is endpoint)
    for method in METHODS:
        if method == found.method:
            assert match(method, found.path.encode()) is found
        else:
            with pytest.raises(MethodNotAllowed) as refused:
                match(method, found.path.encode())
            assert refused.value.headers == ((b"allow", found.method.encode()),)


@pytest.mark.parametrize("path", TRICKS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_spelling_and_the_engines_own_routes_do_not_exist(path: str, method: str) -> None:
    with pytest.raises(PathNotFound):
        match(method, path.encode("latin-1"))


@given(
    path=st.binary()
    | st.sampled_from([e.path.encode() for e in EXACT]).flatmap(
        lambda path: st.tuples(st.integers(0, len(path)), st.binary(max_size=3)).map(
            lambda edit: path[: edit[0]] + edit[1] + path[edit[0] :]
        )
    ),
    method=st.sampled_from(METHODS),
)
@example(path=b"/v1/models/", method="GET")
def test_only_exact_paths_pass_whatever_the_bytes(path: bytes, method: str) -> None:
    known = {e.path.encode() for e in EXACT}
    one_model = path.startswith(b"/v1/models/") and len(path) > len(b"/v1/models/")
    try:
        endpoint = match(method, path)
    except PathNotFound:
        assert path not in known
        assert not one_model
    except MethodNotAllowed:
        assert path in known or one_model
    else:
        assert endpoint.method == method
        assert endpoint.path.encode() == path or (one_model and endpoint.kind is Kind.MODEL)


def test_a_models_name_may_hold_slashes_and_escapes() -> None:
    for name in ("a", "org/model", "org%2Fmodel", "..", "a b"):
        assert match("GET", f"/v1/models/{name}".encode()).kind is Kind.MODEL


def test_only_routes_that_reach_the_engine_are_capped_or_stream() -> None:
    for endpoint in ENDPOINTS.values():
        if endpoint.kind is not Kind.ENGINE:
            assert not endpoint.streams
            assert not endpoint.output_fields


def test_a_refusal_repeats_nothing_of_the_path() -> None:
    with pytest.raises(PathNotFound) as refused:
        match("GET", b"/v1/<script>")
    assert "script" not in refused.value.message
