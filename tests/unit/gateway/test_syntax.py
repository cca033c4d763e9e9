"""Expressions are read as engines read them, or it is said why not."""

import pytest

from gateway.syntax import ALL, Choice, Repeat, Sequence, Unreadable, read


def only(expression: str) -> int:
    """The one set of characters that it is."""
    tree = read(expression)
    assert isinstance(tree, Sequence)
    (chars,) = tree.parts
    assert isinstance(chars, int)
    return chars


def characters(expression: str) -> set[str]:
    return {chr(code) for code in range(128) if only(expression) >> code & 1}


@pytest.mark.parametrize(
    ("expression", "matched"),
    [
        ("a", "a"),
        (r"\.", "."),
        (r"\x41", "A"),
        (r"\u0042", "B"),
        (r"\n", "\n"),
        ("[abc]", "abc"),
        ("[a-c]", "abc"),
        ("[]a]", "]a"),
        ("[a-]", "a-"),
        (r"[\]\-]", "]-"),
        (r"\d", "0123456789"),
        (r"[\d-]", "0123456789-"),
    ],
)
def test_a_set_has_its_characters(expression: str, matched: str) -> None:
    assert characters(expression) == set(matched)


@pytest.mark.parametrize(("expression", "left_out"), [(".", "\n"), ("[^ab]", "ab"), (r"\D", "0123456789")])
def test_a_set_can_be_all_the_others(expression: str, left_out: str) -> None:
    assert {chr(code) for code in range(128)} - characters(expression) == set(left_out)


def test_what_is_not_ascii_is_one_sign() -> None:
    assert only("é") == only("ß") == ALL ^ ((1 << 128) - 1)


def test_repetitions_have_their_bounds() -> None:
    for text, bounds in {
        "*": (0, None),
        "+?": (1, None),
        "?": (0, 1),
        "{2}": (2, 2),
        "{2,}": (2, None),
    }.items():
        tree = read(f"a{text}")
        assert isinstance(tree, Sequence)
        assert tree.parts == [Repeat(1 << ord("a"), *bounds)]


def test_groups_of_every_kind_are_their_content() -> None:
    for text in ("(a|b)", "(?:a|b)", "(?<n>a|b)", "(?P<n>a|b)"):
        tree = read(text)
        assert isinstance(tree, Sequence)
        assert isinstance(tree.parts[0], Choice)


@pytest.mark.parametrize(
    "expression",
    [
        *("(a", "a)", "[a", "*a", "a|*", "a{", "{1}", "a{2,1}", "a{x}", "\\", "(?=a)b", "(?!a)", "(?<=a)b"),
        *("(?i)a", r"(a)\1", "[z-a]", "\\xg", "(" * 60 + ")" * 60),
    ],
)
def test_what_cannot_be_read_says_why(expression: str) -> None:
    with pytest.raises(Unreadable) as raised:
        read(expression)
    assert str(raised.value)
