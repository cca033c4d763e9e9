"""The automaton of an expression is as large as an engine's, and too large a one is found out in no time."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.automaton import BROAD, NARROW, TOO_LARGE, work
from gateway.syntax import Unreadable


@pytest.mark.parametrize(
    ("expression", "units"),
    [
        ("a", NARROW),
        ("abc", 3 * NARROW),
        ("a*", NARROW),
        ("a|b", NARROW),
        ("(ab)*c", 2 * NARROW),
        ("[a-z]{3}", 3 * NARROW),
        ("a{2,4}", 4 * NARROW),
        (".", BROAD),
        (".{10}", 10 * BROAD),
        ("[^a]{10}", 10 * BROAD),
        (".*", BROAD),
        # Which of the last ones were an `a`: two to their power.
        (".*a.{2}", 4 * BROAD),
        (".*a.{5}", 32 * BROAD),
    ],
)
def test_each_state_counts(expression: str, units: int) -> None:
    assert work(expression) == units


@pytest.mark.parametrize(
    "expression",
    [
        *(".*a.{10}", ".*a.{20}", ".*a....................", r"\w*\d\w{12}", "[ab]*a[ab]{14}"),
        *("a{99999}", "(a{100}){100}", "[a-z]{1000}" * 40, "(.{0,30}){30}", "a?" * 250),
    ],
)
def test_what_grows_without_bound_is_too_large(expression: str) -> None:
    started = time.perf_counter()
    assert work(expression) == TOO_LARGE
    assert time.perf_counter() - started < 0.2


@pytest.mark.parametrize("expression", [".?" * 50, ".*" * 50, r"\w?" * 50])
def test_many_ways_on_are_dear(expression: str) -> None:
    assert work(expression) > 10_000


@pytest.mark.parametrize(
    "expression",
    [
        r"^[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}$",
        r"(\d{1,3}\.){3}\d{1,3}",
        r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z",
        "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        r"(?:\+\d{1,3} ?)?\(?\d{3}\)?[ -]?\d{3}[ -]?\d{4}",
        "(yes|no|perhaps)",
        r"[A-Z]{2}[0-9]{2}( ?[A-Z0-9]{4}){3}",
        "(?P<year>[0-9]{4})(?<month>[0-9]{2})",
        r"[\w\s\-]+?",
        r"\x41é[\]\[]",
        "",
    ],
)
def test_what_people_write_is_cheap(expression: str) -> None:
    assert work(expression) < 400


@given(st.text(alphabet="ab.d()[]{}*+?\\|,^$-019é", max_size=40))
def test_any_text_is_decided(expression: str) -> None:
    try:
        assert work(expression) >= 0
    except Unreadable as reason:
        assert str(reason)  # noqa: PT017 - either outcome is right; another exception is not


LITERALS = st.text(alphabet="abc", min_size=1, max_size=4)


@given(st.lists(LITERALS, min_size=1, max_size=6, unique=True))
def test_words_have_a_state_for_each_beginning(words: list[str]) -> None:
    """No more than the tree of their beginnings has."""
    prefixes = {word[:at] for word in words for at in range(len(word) + 1)}
    assert work("|".join(map(re.escape, words))) <= len(prefixes) * NARROW + len(words) * 4 * NARROW
