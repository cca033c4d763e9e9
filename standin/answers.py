"""Every generating route's answer, whole or streamed."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from standin import named, render
from standin.generation import Generation, Kind
from standin.render import StreamEvent
from standin.replies import Captures

_WHOLE: Mapping[Kind, Callable[[Generation, Captures], bytes]] = MappingProxyType(
    {
        "chat": render.whole_body,
        "completions": render.whole_body,
        "responses": named.response_body,
        "messages": named.message_body,
    }
)
_STREAMED: Mapping[Kind, Callable[[Generation, Captures], Iterator[StreamEvent]]] = MappingProxyType(
    {
        "chat": render.stream_events,
        "completions": render.stream_events,
        "responses": named.response_events,
        "messages": named.message_events,
    }
)


def whole_body(generation: Generation, captures: Captures) -> bytes:
    """The body of a reply that is not streamed."""
    return _WHOLE[generation.kind](generation, captures)


def stream_events(generation: Generation, captures: Captures) -> Iterator[StreamEvent]:
    """The events of a streamed reply, one token each."""
    return _STREAMED[generation.kind](generation, captures)
