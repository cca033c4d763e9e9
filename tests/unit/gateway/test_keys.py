"""The text form of API keys: what is accepted, what a typo does, what stays hidden."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gateway import keys

KEY_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def test_a_generated_key_has_the_documented_form() -> None:
    assert re.fullmatch(r"sk-gh-[a-z2-7]{10}-[A-Za-z0-9_-]{49}", keys.generate())


def test_a_generated_key_is_parsed_into_its_parts() -> None:
    text = keys.generate()
    parsed = keys.parse(text)
    assert parsed is not None
    assert f"sk-gh-{parsed.id}-{parsed.secret}" == text[:-6]
    assert len(parsed.secret) == 43


def test_two_keys_share_neither_id_nor_secret() -> None:
    first, second = keys.parse(keys.generate()), keys.parse(keys.generate())
    assert first is not None
    assert second is not None
    assert first.id != second.id
    assert first.secret != second.secret


@given(place=st.integers(0, 65), replacement=st.sampled_from(KEY_CHARACTERS))
def test_any_single_wrong_character_is_told_from_a_wrong_key(place: int, replacement: str) -> None:
    text = keys.generate()
    assert len(text) == 66
    wrong = text[:place] + replacement + text[place + 1 :]
    assert (keys.parse(wrong) is not None) == (wrong == text)


@given(place=st.integers(6, 64))
def test_two_neighbours_that_change_places_are_told_from_a_wrong_key(place: int) -> None:
    text = keys.generate()
    wrong = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    assert (keys.parse(wrong) is not None) == (wrong == text)


@given(st.text() | st.text(KEY_CHARACTERS, min_size=55, max_size=70).map(keys.PREFIX.__add__))
def test_other_text_is_no_key_and_no_fault(text: str) -> None:
    assert keys.parse(text) is None


def test_a_key_that_is_cut_padded_or_followed_by_a_newline_is_no_key() -> None:
    text = keys.generate()
    for wrong in (text[:-1], text + "A", text + "\n", " " + text, text.upper()):
        assert keys.parse(wrong) is None


def test_the_repr_of_a_parsed_key_shows_its_id_and_not_its_secret() -> None:
    parsed = keys.parse(keys.generate())
    assert parsed is not None
    assert parsed.id in repr(parsed)
    assert parsed.secret not in repr(parsed)
    assert parsed.secret not in str(parsed)


def test_the_digest_depends_on_secret_and_pepper_and_is_stable() -> None:
    assert keys.digest("secret", b"pepper") == keys.digest("secret", b"pepper")
    assert keys.digest("secret", b"pepper") != keys.digest("secret", b"other")
    assert keys.digest("secret", b"pepper") != keys.digest("other", b"pepper")
    assert len(keys.digest("secret", b"pepper")) == 32


def test_a_pepper_is_named_without_being_given_away() -> None:
    assert keys.pepper_id(b"one") != keys.pepper_id(b"two")
    assert keys.pepper_id(b"one") == keys.pepper_id(b"one")
    assert "one" not in keys.pepper_id(b"one")
    assert len(keys.pepper_id(b"one")) == 12
