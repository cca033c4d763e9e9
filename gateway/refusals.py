"""Why requests were refused: the last of them, in memory, and their explanation in words.

An operator who is shown a request id learns which rule or limit refused it, what that held, and what would
let it pass.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

from gateway.limits import LimitScope, Refused, whole_seconds

KNOWN_CALLERS = 10_000
STRANGERS = 1_000

_CHANGE_THE_REQUEST = (
    "Nothing but another request: correct it as the message says. Tried again as it is, it is refused again."
)
_TOO_LARGE = (
    "A smaller request: a shorter prompt, a lower max_tokens or n. It is larger than the whole limit, and "
    "waiting does not help."
)
_TRY_AGAIN = "The same request, once the cause is gone: `make status` and `make logs` show it."
# What would let a request pass, by the error's code. Others: by its status.
_REMEDIES = {
    "missing_api_key": "An API key, sent as `Authorization: Bearer sk-gh-…`.",
    "invalid_api_key": 'A key of this gateway: `make keys ARGS=list` shows them, `make keys ARGS="create …"` '
    "makes one. A key made with another pepper (secrets/key_pepper) is none.",
    "mistyped_api_key": "The key as it was shown, whole: by its checksum a character is missing or wrong.",
    "revoked_api_key": "Another key. A revocation is for good.",
    "disabled_api_key": 'The same key, once it is enabled again: `make keys ARGS="enable {key}"`.',
    "expired_api_key": 'The same key with a later end: `make keys ARGS="change {key} --expires DATE"`.',
    "invalid_token": "A token whose issuer, audience, algorithm and times are those that the GATEWAY_JWT_ "
    "settings ask for, signed with a key of the issuer's present key set.",
    "scope_missing": 'A key with the route\'s scope: `make keys ARGS="change {key} --scopes …"`.',
    "plan_missing": "A plan of that name in plans.yaml, or another plan for the key: "
    '`make keys ARGS="change {key} --plan …"`; `make keys ARGS=plans` lists them.',
    "model_not_found": "A model that the key may use: GET /v1/models lists them; its plan's `models` in "
    'plans.yaml or `make keys ARGS="change {key} --models …"` allow more.',
    "endpoint_not_supported": "Another route: the engine's model does not serve this one.",
    "max_tokens_too_large": "Fewer output tokens, or a higher `output.cap` in the plan, or "
    '`make keys ARGS="change {key} --output-cap N"`.',
    "parameter_not_allowed": "The request without this parameter, or within its bounds; the plan's "
    "`parameters` in plans.yaml may allow more, but nothing that would harm the engine.",
    "unknown_parameter": "The parameter's right name, or `unknown_fields: pass` in the plan.",
    "body_too_large": "A smaller body, or a larger GATEWAY_MAX_BODY_BYTES.",
    "context_length_exceeded": "A shorter prompt or fewer output tokens: prompt and output share the model's "
    "context.",
    "too_many_failed_logins": "A valid key, at once; wrong ones are counted by address and must wait.",
    "store_unavailable": "The same request, once the key store answers: a key that was never seen cannot be "
    "checked without it.",
    "overloaded": "The same request, when fewer are under way: the gateway holds as many bytes of bodies "
    "as it may (GATEWAY_MAX_INFLIGHT_BODY_BYTES).",
    "engine_unavailable": "The same request, once an engine answers: `make status` shows how they are.",
    "engine_timeout": "A shorter request, or longer GATEWAY_ timeouts; an engine that hangs shows in "
    "`make logs ARGS=vllm`.",
    "engine_error": "The same request, if the engine's fault was passing: `make logs ARGS=vllm` shows it.",
    "draining": "The same request, after the restart.",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused request. `at`: seconds since the epoch. `tenant`, `key_id` and `plan` are None while nobody
    knows who asks; `limits` are those that held, if any did.
    """

    request_id: str
    at: float
    route: str
    status: int
    code: str
    message: str
    param: str | None = None
    model: str = ""
    tenant: str | None = None
    key_id: str | None = None
    plan: str | None = None
    limits: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """A refusal in words: `why`, and `remedies`, each of which would let it pass or leads there."""

    why: tuple[str, ...]
    remedies: tuple[str, ...]


class RefusalLog:
    """The last refusals by request id. Those of strangers are kept apart, so that a flood of wrong keys
    pushes out nobody else's. Where a client used an id twice, the later one is kept.
    """

    def __init__(self, *, known: int = KNOWN_CALLERS, strangers: int = STRANGERS) -> None:
        self._known = _Newest(known)
        self._strangers = _Newest(strangers)

    def note(self, refusal: Refusal) -> None:
        (self._strangers if refusal.key_id is None else self._known).add(refusal)

    def find(self, request_id: str) -> Refusal | None:
        return self._known.get(request_id) or self._strangers.get(request_id)

    def __len__(self) -> int:
        return len(self._known) + len(self._strangers)


class _Newest(OrderedDict[str, Refusal]):
    """As many as fit, the oldest goes first."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def add(self, refusal: Refusal) -> None:
        self[refusal.request_id] = refusal
        self.move_to_end(refusal.request_id)
        if len(self) > self._size:
            self.popitem(last=False)


def explain(refusal: Refusal) -> Explanation:
    """Says why, and what would make it pass. Pure: it knows the refusal and nothing else."""
    if refusal.limits:
        return Explanation(
            why=tuple(_held(refused) for refused in refusal.limits),
            remedies=(*_waiting(refusal.limits), *(_raising(refused) for refused in refusal.limits)),
        )
    remedy = _REMEDIES.get(refusal.code) or (_TRY_AGAIN if refusal.status >= 500 else _CHANGE_THE_REQUEST)
    return Explanation((refusal.message,), (remedy.replace("{key}", refusal.key_id or "ID"),))


def _held(refused: Refused) -> str:
    limit = refused.limit
    return (
        f"{_whose(limit.scope, limit.subject)}: {limit.name} is {limit.amount}; {refused.used} were used and "
        f"the request needed {refused.asked}."
    )


def _waiting(limits: tuple[Refused, ...]) -> tuple[str, ...]:
    wait = max(refused.retry_after for refused in limits)
    if math.isinf(wait):
        return (_TOO_LARGE,)
    return (f"The same request {whole_seconds(wait)} s later, if nothing else takes the place.",)


def _raising(refused: Refused) -> str:
    limit = refused.limit
    enough = refused.asked if math.isinf(refused.retry_after) else refused.used + refused.asked
    place = {
        "key": f"the plan's `limits.{limit.name}` in plans.yaml",
        "tenant": f"`tenants.{limit.subject}.{limit.name}` in plans.yaml",
        "everyone": f"`everyone.{limit.name}` in plans.yaml",
    }[limit.scope]
    # Who comes with a token has no key that could be changed.
    if limit.scope == "key" and not limit.subject.startswith("jwt-"):
        option = limit.name.replace("_", "-")
        place = f'`make keys ARGS="change {limit.subject} --{option} {enough}"`, or {place}'
    return f"{limit.name} of at least {enough}: {place}."


def _whose(scope: LimitScope, subject: str) -> str:
    return "everyone together" if scope == "everyone" else f"{scope} {subject}"
