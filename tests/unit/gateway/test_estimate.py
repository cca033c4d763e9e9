"""Estimates: never beyond their bounds, soon near what engines report, cautious while nothing is known."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.endpoints import ENDPOINTS
from gateway.estimate import TEMPLATE_TOKENS, Estimator, tokenize_request

CHAT = ENDPOINTS["/v1/chat/completions"]
COMPLETIONS = ENDPOINTS["/v1/completions"]
PAIRS = st.lists(st.tuples(st.integers(1, 200_000), st.integers(1, 50_000)), max_size=30)


@given(pairs=PAIRS, size=st.integers(0, 1_048_576), output=st.integers(0, 100_000))
def test_an_estimate_lies_within_its_bounds_whatever_was_learnt(
    pairs: list[tuple[int, int]], size: int, output: int
) -> None:
    estimator = Estimator()
    for prompt_bytes, tokens in pairs:
        estimator.learn("m", prompt_bytes, tokens)
    ask = estimator.ask("m", size, output)
    assert ask.at_least == output + 1
    assert ask.at_most == size + TEMPLATE_TOKENS + output
    assert output <= ask.tokens <= ask.at_most


def test_the_first_estimate_takes_two_bytes_for_a_token() -> None:
    assert Estimator().ask("m", 1001, 10).tokens == 511


@given(ratio=st.floats(2.0, 6.0), noise=st.lists(st.floats(-0.3, 0.3), min_size=60, max_size=60))
def test_it_comes_near_and_stays_on_the_safe_side(ratio: float, noise: list[float]) -> None:
    estimator = Estimator()
    for off in noise:
        estimator.learn("m", 10_000, round(10_000 / (ratio + off)))
    estimated, true = estimator.ask("m", 10_000, 0).tokens, 10_000 / ratio
    assert 0.95 * true <= estimated <= 2.0 * true


def test_models_do_not_learn_from_each_other_and_are_bounded() -> None:
    estimator = Estimator()
    for _ in range(50):
        estimator.learn("wordy", 10_000, 1000)
    assert estimator.ask("wordy", 10_000, 0).tokens < 2000
    assert estimator.ask("other", 10_000, 0).tokens == 5000
    for number in range(5000):
        estimator.learn(f"m{number}", 10, 1)
    assert estimator.ask("wordy", 10_000, 0).tokens == 5000, "the oldest is forgotten"


def test_a_prompt_without_tokens_teaches_nothing() -> None:
    estimator = Estimator()
    estimator.learn("m", 100, 0)
    assert estimator.ask("m", 100, 0).tokens == 50


@pytest.mark.parametrize(
    ("events", "seconds", "made"),
    [(10, 99.0, 20), (0, 3.0, 30), (0, 0.0, 0), (1000, 1.0, 100), (0, 99.0, 100)],
)
def test_an_abandoned_answer_is_counted_by_its_events_or_its_time(
    events: int, seconds: float, made: int
) -> None:
    estimator = Estimator()
    for _ in range(5):
        estimator.learn_output("m", tokens=40, events=20, seconds=4.0)
    assert estimator.abandoned("m", events, seconds, 100) == made


def test_very_short_answers_do_not_make_long_ones_cheap() -> None:
    estimator = Estimator()
    for _ in range(50):
        estimator.learn_output("m", tokens=1, events=9, seconds=0.1)
    assert estimator.abandoned("m", 500, 10.0, 1000) == 500


def test_while_nothing_is_known_an_event_is_a_token_and_silence_is_the_whole_cap() -> None:
    assert Estimator().abandoned("m", 7, 1.0, 100) == 7
    assert Estimator().abandoned("m", 0, 1.0, 100) == 100


def test_a_chat_is_counted_with_its_tools_and_without_the_rest() -> None:
    body = {"model": "m", "messages": [], "tools": [], "max_tokens": 5, "stream": True, "cache_salt": "x"}
    counted = tokenize_request(CHAT, orjson.dumps(body))
    assert counted is not None
    assert orjson.loads(counted) == {"model": "m", "messages": [], "tools": []}


def test_one_text_is_counted_and_a_list_of_prompts_is_not() -> None:
    one = tokenize_request(COMPLETIONS, b'{"model":"m","prompt":"Hello","n":2}')
    assert one is not None
    assert orjson.loads(one) == {"model": "m", "prompt": "Hello"}
    assert tokenize_request(COMPLETIONS, b'{"model":"m","prompt":["a","b"]}') is None
    assert tokenize_request(COMPLETIONS, b'{"model":"m","prompt":[1,2]}') is None
    assert tokenize_request(ENDPOINTS["/v1/embeddings"], b'{"model":"m","input":"a"}') is None


def test_padded_bodies_do_not_make_the_estimates_of_others_small() -> None:
    estimator = Estimator()
    for _ in range(200):
        estimator.learn("m", 64_000, 20)
    assert estimator.ask("m", 60_000, 0).tokens == 10_000


def test_tools_are_bounded_by_what_a_template_can_make_of_them() -> None:
    assert Estimator().ask("m", 1000, 10, rendered_again=True).at_most == 2000 + TEMPLATE_TOKENS + 10


def test_time_that_ran_backwards_is_no_time() -> None:
    estimator = Estimator()
    estimator.learn_output("m", tokens=40, events=0, seconds=4.0)
    assert estimator.abandoned("m", 0, -3600.0, 100) == 0
