"""The allow-list of paths, as data. What is not here does not exist, before anything is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from gateway.errors import MethodNotAllowed, PathNotFound

MODELS_PREFIX = "/v1/models/"


class Kind(Enum):
    """Who answers: the engine, or the gateway itself."""

    ENGINE = "engine"
    MODELS = "models"
    MODEL = "model"
    LIVE = "live"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One allowed path.

    `prompt_field` is where the request's input stands, named when it is too long.
    `output_fields` are the aliases that cap the output, the engine's own name first; empty: the route has no
    output tokens. `output_default` is what stands where none is given; None: the configured default.
    """

    path: str
    method: str
    kind: Kind
    prompt_field: str = ""
    streams: bool = False
    output_fields: tuple[str, ...] = ()
    output_default: int | None = None


_ALL = (
    Endpoint(
        "/v1/chat/completions",
        "POST",
        Kind.ENGINE,
        prompt_field="messages",
        streams=True,
        output_fields=("max_tokens", "max_completion_tokens"),
    ),
    # 16 is the default that OpenAI's reference documents for this route and that vLLM keeps.
    Endpoint(
        "/v1/completions",
        "POST",
        Kind.ENGINE,
        prompt_field="prompt",
        streams=True,
        output_fields=("max_tokens",),
        output_default=16,
    ),
    Endpoint("/v1/embeddings", "POST", Kind.ENGINE, prompt_field="input"),
    Endpoint("/v1/models", "GET", Kind.MODELS),
    Endpoint("/v1/models/{id}", "GET", Kind.MODEL),
    Endpoint("/livez", "GET", Kind.LIVE),
    Endpoint("/readyz", "GET", Kind.READY),
)

ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType({endpoint.path: endpoint for endpoint in _ALL})


def match(method: str, raw_path: bytes) -> Endpoint:
    """The endpoint for exactly this path, undecoded, so that no encoding or dot segment has a second reading.

    Raises PathNotFound or MethodNotAllowed.
    """
    path = raw_path.decode("latin-1")
    endpoint = ENDPOINTS.get(path)
    if endpoint is None and path.startswith(MODELS_PREFIX) and len(path) > len(MODELS_PREFIX):
        endpoint = ENDPOINTS["/v1/models/{id}"]
    if endpoint is None:
        raise PathNotFound(
            "This path is not served here. Paths are matched exactly: "
            "POST /v1/chat/completions, /v1/completions, /v1/embeddings; GET /v1/models."
        )
    if endpoint.method != method:
        raise MethodNotAllowed(
            f"{endpoint.path} takes {endpoint.method}.", headers=((b"allow", endpoint.method.encode()),)
        )
    return endpoint
