"""What the stand-in says, and how it counts tokens."""

from itertools import cycle, islice

ANSWER = (
    "This is the stand-in engine. It answers like vLLM, token by token, but no model and no GPU are behind "
    "it: every answer is this text. Your request came through the gateway, and the reply came back that way."
)
# The captured chat template adds seven tokens to a message's own.
TEMPLATE_TOKENS = 7


def answer_tokens(count: int) -> list[str]:
    """The first `count` tokens of the answer, from the start again where it is shorter."""
    words = [word if at == 0 else f" {word}" for at, word in enumerate(ANSWER.split(" "))]
    again = [f" {words[0]}", *words[1:]]
    return [*words[:count], *islice(cycle(again), max(0, count - len(words)))]


def count_tokens(text: str) -> int:
    """Tokens in `text`: one a word."""
    return len(text.split())


# The end-of-sequence token counts as one, as it does in vLLM.
DEFAULT_TOKENS = len(ANSWER.split(" ")) + 1
