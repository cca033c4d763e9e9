"""How many tokens a request will use, before an engine has said so; calibrated by what engines report."""

import math
from dataclasses import dataclass

import jiter
import orjson

from gateway.endpoints import Endpoint
from gateway.limits import Ask

# Until a model has told its own: few, so that the first requests reserve too much.
FIRST_BYTES_PER_TOKEN = 2.0
# Whatever a model's prompts have shown: a client that pads its bodies must not make others' estimates small.
MOST_BYTES_PER_TOKEN = 6.0
# A template that writes JSON anew puts a space after each comma and colon, or a line break and an indent: at
# most a byte of its own for each byte of the body (measured with `tojson` and `indent=4`: 1.5 and 2.0 times).
RENDERED_AGAIN = 2
# How much one request's figures change what is known: about the last twenty count.
WEIGHT = 0.1
# Deviations below the mean that are still expected.
CAUTION = 2.0
# What a chat template adds of its own: a default system prompt, the words around tools, an answer's head.
TEMPLATE_TOKENS = 256
_MAX_MODELS = 1000
_COUNTED_CHAT = ("model", "messages", "tools", "chat_template_kwargs")


@dataclass(slots=True)
class Average:
    """An exponentially weighted mean, and the mean absolute deviation from it."""

    mean: float
    deviation: float = 0.0

    def learn(self, value: float) -> None:
        error = value - self.mean
        self.mean += WEIGHT * error
        self.deviation += WEIGHT * (abs(error) - self.deviation)


@dataclass(slots=True)
class Known:
    """What one model's replies have taught. `per_event` and `per_second`: output tokens."""

    bytes_per_token: Average | None = None
    per_event: Average | None = None
    per_second: Average | None = None


class Estimator:
    """Estimates for every model, in tokens. A prompt's size is that of its JSON body, in bytes."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def ask(self, model: str, prompt_bytes: int, output_tokens: int, *, rendered_again: bool = False) -> Ask:
        """What a request may use. `rendered_again`: its body holds tools, which a template writes anew.

        The upper bound: a token of a byte-level vocabulary holds at least one byte of the text, the text is
        no longer than the JSON that carries it (where escapes only add), and what a template says around a
        message is shorter than the JSON around it, but for the fixed part of TEMPLATE_TOKENS: a template with
        a longer one of its own needs more.
        """
        known = self._known.get(model)
        ratio = FIRST_BYTES_PER_TOKEN
        if known is not None and known.bytes_per_token is not None:
            average = known.bytes_per_token
            ratio = min(MOST_BYTES_PER_TOKEN, max(1.0, average.mean - CAUTION * average.deviation))
        most_bytes = prompt_bytes * RENDERED_AGAIN if rendered_again else prompt_bytes
        return Ask(
            math.ceil(prompt_bytes / ratio) + output_tokens,
            most_bytes + TEMPLATE_TOKENS + output_tokens,
            output_tokens + 1,
        )

    def learn(self, model: str, prompt_bytes: int, prompt_tokens: int) -> None:
        """Takes in what an engine says of a prompt."""
        if prompt_tokens > 0:
            known = self._of(model)
            known.bytes_per_token = _learnt(known.bytes_per_token, prompt_bytes / prompt_tokens)

    def learn_output(self, model: str, tokens: int, events: int, seconds: float) -> None:
        """Takes in a whole answer: its tokens, the events of its stream (0: none), how long it took."""
        known = self._of(model)
        if events > 0:
            known.per_event = _learnt(known.per_event, tokens / events)
        if seconds > 0:
            known.per_second = _learnt(known.per_second, tokens / seconds)

    def abandoned(self, model: str, events: int, seconds: float, output_tokens: int) -> int:
        """Output tokens of an answer that nobody saw the end of, after so many events or seconds; never more
        than the request's own cap, and all of that while nothing is known.
        """
        known = self._known.get(model)
        if events > 0:
            ratio = known.per_event.mean if known is not None and known.per_event is not None else 1.0
            # But for the few around an answer an event holds a token at least. Very short answers consist of
            # those few: they must not make the long ones cheap.
            return min(output_tokens, math.ceil(events * max(1.0, ratio)))
        if known is None or known.per_second is None:
            return output_tokens
        return min(output_tokens, math.ceil(max(0.0, seconds) * known.per_second.mean))

    def _of(self, model: str) -> Known:
        known = self._known.get(model)
        if known is None:
            if len(self._known) >= _MAX_MODELS:
                del self._known[next(iter(self._known))]
            known = self._known[model] = Known()
        return known


def _learnt(average: Average | None, value: float) -> Average:
    if average is None:
        # One value tells little of the others: with this deviation, half of it is the first estimate.
        return Average(value, value / 4)
    average.learn(value)
    return average


def tokenize_request(endpoint: Endpoint, body: bytes) -> bytes | None:
    """The body for the engine's own tokenizer that counts this request's prompt exactly; None where there is
    none.
    """
    asked = jiter.from_json(body)
    if endpoint.path == "/v1/chat/completions":
        return orjson.dumps({name: asked[name] for name in _COUNTED_CHAT if asked.get(name) is not None})
    if endpoint.path == "/v1/completions" and isinstance(asked.get("prompt"), str):
        return orjson.dumps({"model": asked["model"], "prompt": asked["prompt"]})
    return None
