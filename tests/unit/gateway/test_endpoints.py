"""The allow-list of paths: what is exactly on it is served, all else does not exist."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.endpoints import ENDPOINTS, OPTIONAL, Endpoint, Kind, Routes, dialect_of
from gateway.errors import MethodNotAllowed, PathNotFound
from gateway.principal import ALL_SCOPES

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "FOO")
EXACT = [endpoint for endpoint in ENDPOINTS.values() if endpoint.kind is not Kind.MODEL]
EVERYTHING = Routes(OPTIONAL)
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
    "/v1/tokenize",
    "/detokenize",
    "/metrics",
    "/health",
    "/ping",
    "/version",
    "/load",
    "/docs",
    "/openapi.json",
    "/admin/keys",
    "/v1/messages/",
    "/v1/messages/render",
    "/v1/messages/count_tokens/",
    "/v1/responses/",
    "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel",
    "/v1/completions/render",
    "/v1/chat/completions/batch",
    "/score",
    "/rerank",
    "/v2/rerank",
    "/v2/embed",
    "/pooling",
    "/classify",
    "/v1/systemone",
    "/generative_scoring",
    "/tokenizer_info",
    "/scale_elastic_ep",
    "/collective_rpc",
    "/v1/load_lora_adapter",
    "",
    "/",
    "*",
)


@pytest.mark.parametrize("endpoint", EXACT, ids=lambda endpoint: endpoint.path)
def test_an_allowed_path_is_found_with_its_method_only(endpoint: Endpoint) -> None:
    for method in METHODS:
        if method == endpoint.method:
            assert EVERYTHING.match(method, endpoint.path.encode()) is endpoint
        else:
            with pytest.raises(MethodNotAllowed) as refused:
                EVERYTHING.match(method, endpoint.path.encode())
            assert refused.value.headers == ((b"allow", endpoint.method.encode()),)


@pytest.mark.parametrize("path", TRICKS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_spelling_and_the_engines_own_routes_do_not_exist(path: str, method: str) -> None:
    with pytest.raises(PathNotFound):
        EVERYTHING.match(method, path.encode("latin-1"))


@pytest.mark.parametrize("path", sorted(OPTIONAL))
def test_an_optional_route_does_not_exist_unless_it_is_named(path: str) -> None:
    others = Routes(OPTIONAL - {path})
    for routes in (Routes(), others):
        with pytest.raises(PathNotFound) as refused:
            routes.match("POST", path.encode())
        assert path not in refused.value.message
    assert Routes([path]).match("POST", path.encode()) is ENDPOINTS[path]
    with pytest.raises(PathNotFound, match=path):
        Routes([path]).match("POST", b"/nothing")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/rerank/", ""])
def test_only_optional_routes_can_be_named(path: str) -> None:
    with pytest.raises(ValueError, match="not optional routes"):
        Routes([path])


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
        endpoint = EVERYTHING.match(method, path)
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
        assert Routes().match("GET", f"/v1/models/{name}".encode()).kind is Kind.MODEL


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=lambda endpoint: endpoint.path)
def test_a_routes_data_fits_together(endpoint: Endpoint) -> None:
    asks_engine = endpoint.kind is Kind.ENGINE
    assert bool(endpoint.prompt_field) == asks_engine
    assert (endpoint.scope is not None) == asks_engine, "what an engine does needs a scope, all else none"
    if endpoint.streams or endpoint.optional:
        assert asks_engine
    # What generates has a cap, a stream and a usage rule; what does not has no output.
    assert (endpoint.scope == "generate") == bool(endpoint.output_fields) == endpoint.streams
    assert (endpoint.usage is not None) == (endpoint.scope in {"generate", "embed", "rank"})
    if endpoint.usage_option:
        assert endpoint.streams


def test_every_scope_has_a_route() -> None:
    assert {endpoint.scope for endpoint in ENDPOINTS.values()} - {None} == ALL_SCOPES


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=lambda endpoint: endpoint.path)
def test_a_path_has_the_error_shape_of_its_endpoint(endpoint: Endpoint) -> None:
    assert (dialect_of(endpoint.path.encode()) == "anthropic") == (endpoint.dialect == "anthropic")


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        (b"/v1/messages/batches", "anthropic"),
        (b"/v1/messages/", "anthropic"),
        (b"/v1/messages%2f", "openai"),
        (b"/v1/messagesx", "openai"),
        (b"/v1/complete", "openai"),
        (b"/", "openai"),
    ],
)
def test_a_path_that_does_not_exist_has_the_error_shape_of_its_neighbours(path: bytes, dialect: str) -> None:
    assert dialect_of(path) == dialect


def test_a_refusal_repeats_nothing_of_the_path() -> None:
    with pytest.raises(PathNotFound) as refused:
        Routes().match("GET", b"/v1/<script>")
    assert "script" not in refused.value.message
