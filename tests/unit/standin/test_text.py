import pytest

from standin.text import ANSWER, DEFAULT_TOKENS, answer_tokens, count_tokens


def test_the_tokens_of_a_whole_answer_are_its_text() -> None:
    assert "".join(answer_tokens(DEFAULT_TOKENS - 1)) == ANSWER


@pytest.mark.parametrize("count", [0, 1, 7, 500])
def test_any_number_of_tokens_can_be_had_and_counts_as_many(count: int) -> None:
    tokens = answer_tokens(count)
    assert len(tokens) == count == count_tokens("".join(tokens))
