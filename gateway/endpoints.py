"""The allow-list of paths, as data. What is not here does not exist, before anything is read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Literal

from gateway.errors import MethodNotAllowed, PathNotFound
from gateway.usage import COMPLETIONS_USAGE, MESSAGES_USAGE, RANKING_USAGE, RESPONSES_USAGE, UsageRule

MODELS_PREFIX = "/v1/models/"

# In whose words a route speaks: how its errors look, and how its streams end.
Dialect = Literal["openai", "responses", "anthropic"]
# What a key must be allowed, by route.
Scope = Literal["generate", "embed", "tokenize", "rank"]


class Kind(Enum):
    """Who answers: the engine, or the gateway itself."""

    ENGINE = "engine"
    MODELS = "models"
    MODEL = "model"
    LIMITS = "limits"
    USAGE = "usage"
    LIVE = "live"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One allowed path.

    `scope` is what a key needs for it; None: any key will do. `optional`: off unless the operator names it.
    `prompt_field` is where the request's input stands, named when it is too long.
    `output_fields` are the aliases that cap the output, the engine's own name first; empty: the route has no
    output tokens. `output_default` is what stands where none is given; None: the plan's default.
    `choice_fields` multiply the output. `usage_option`: a stream tells its usage only if `stream_options`
    asks for it; on the other routes it always does. `usage` is where a reply tells its tokens; None: the
    route uses none of the model's.
    """

    path: str
    method: str
    kind: Kind
    scope: Scope | None = None
    dialect: Dialect = "openai"
    optional: bool = False
    prompt_field: str = ""
    streams: bool = False
    output_fields: tuple[str, ...] = ()
    output_default: int | None = None
    choice_fields: tuple[str, ...] = ()
    usage_option: bool = False
    usage: UsageRule | None = None


_ALL = (
    Endpoint(
        "/v1/chat/completions",
        "POST",
        Kind.ENGINE,
        scope="generate",
        prompt_field="messages",
        streams=True,
        output_fields=("max_tokens", "max_completion_tokens"),
        choice_fields=("n", "best_of"),
        usage_option=True,
        usage=COMPLETIONS_USAGE,
    ),
    # 16 is the default that OpenAI's reference documents for this route and that vLLM keeps.
    Endpoint(
        "/v1/completions",
        "POST",
        Kind.ENGINE,
        scope="generate",
        prompt_field="prompt",
        streams=True,
        output_fields=("max_tokens",),
        output_default=16,
        choice_fields=("n", "best_of"),
        usage_option=True,
        usage=COMPLETIONS_USAGE,
    ),
    Endpoint(
        "/v1/responses",
        "POST",
        Kind.ENGINE,
        scope="generate",
        dialect="responses",
        prompt_field="input",
        streams=True,
        output_fields=("max_output_tokens",),
        usage=RESPONSES_USAGE,
    ),
    Endpoint(
        "/v1/messages",
        "POST",
        Kind.ENGINE,
        scope="generate",
        dialect="anthropic",
        prompt_field="messages",
        streams=True,
        output_fields=("max_tokens",),
        usage=MESSAGES_USAGE,
    ),
    Endpoint(
        "/v1/messages/count_tokens",
        "POST",
        Kind.ENGINE,
        scope="tokenize",
        dialect="anthropic",
        prompt_field="messages",
    ),
    Endpoint("/tokenize", "POST", Kind.ENGINE, scope="tokenize", prompt_field="prompt"),
    Endpoint(
        "/v1/embeddings", "POST", Kind.ENGINE, scope="embed", prompt_field="input", usage=COMPLETIONS_USAGE
    ),
    Endpoint(
        "/v1/rerank",
        "POST",
        Kind.ENGINE,
        scope="rank",
        optional=True,
        prompt_field="documents",
        usage=RANKING_USAGE,
    ),
    Endpoint(
        "/v1/score",
        "POST",
        Kind.ENGINE,
        scope="rank",
        optional=True,
        prompt_field="text_2",
        usage=RANKING_USAGE,
    ),
    Endpoint("/v1/models", "GET", Kind.MODELS),
    Endpoint("/v1/models/{id}", "GET", Kind.MODEL),
    Endpoint("/v1/limits", "GET", Kind.LIMITS),
    Endpoint("/v1/usage", "GET", Kind.USAGE),
    Endpoint("/livez", "GET", Kind.LIVE),
    Endpoint("/readyz", "GET", Kind.READY),
)

ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType({endpoint.path: endpoint for endpoint in _ALL})
OPTIONAL: frozenset[str] = frozenset(endpoint.path for endpoint in _ALL if endpoint.optional)
_MESSAGES = b"/v1/messages"


def dialect_of(raw_path: bytes) -> Dialect:
    """Whose error shape a path gets, one that does not exist included."""
    return "anthropic" if raw_path == _MESSAGES or raw_path.startswith(_MESSAGES + b"/") else "openai"


class Routes:
    """The allow-list of one gateway."""

    def __init__(self, optional: Iterable[str] = ()) -> None:
        """`optional` names the paths of OPTIONAL that are on. Raises ValueError for any other."""
        wanted = frozenset(optional)
        if unknown := wanted - OPTIONAL:
            raise ValueError(f"not optional routes: {', '.join(sorted(unknown))}")
        served = [endpoint for endpoint in _ALL if not endpoint.optional or endpoint.path in wanted]
        self._by_path = {endpoint.path.encode(): endpoint for endpoint in served}
        self._paths = {
            method: ", ".join(one.path for one in served if one.method == method)
            for method in ("POST", "GET")
        }

    def match(self, method: str, raw_path: bytes) -> Endpoint:
        """The endpoint for exactly this path, undecoded, so that no encoding or dot segment has a second
        reading.

        Raises PathNotFound or MethodNotAllowed.
        """
        endpoint = self._by_path.get(raw_path)
        if endpoint is None:
            endpoint = self._other(raw_path)
        if endpoint.method != method:
            raise MethodNotAllowed(
                f"{endpoint.path} takes {endpoint.method}.", headers=((b"allow", endpoint.method.encode()),)
            )
        return endpoint

    def _other(self, raw_path: bytes) -> Endpoint:
        prefix = MODELS_PREFIX.encode()
        if raw_path.startswith(prefix) and len(raw_path) > len(prefix):
            return ENDPOINTS["/v1/models/{id}"]
        raise PathNotFound(
            "This path is not served here. Paths are matched exactly: "
            f"POST {self._paths['POST']}; GET {self._paths['GET']}."
        )
