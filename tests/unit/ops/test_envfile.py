"""`.env` is read as Docker Compose reads it, and what is not ours in it is not touched."""

import contextlib
import io

import dotenv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops import envfile
from ops.errors import OpsError
from tests.capabilities import ROOT

NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,10}", fullmatch=True)
# No NUL, no lone surrogate, and no character that some readers take for the end of a line.
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\x85\u2028\u2029"), max_size=30)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("A= b  ", "b"),
        ("export A=b", "b"),
        ("  A=b", "b"),
        ("A=", ""),
        ("A=b # comment", "b"),
        ("A=b#no comment", "b#no comment"),
        ("A=#no comment", "#no comment"),
        ("A=x\t# no comment", "x\t# no comment"),
        ("A = x", "x"),
        ("A: x", "x"),
        ("A=$$B", "$B"),
        ("A=\\$B", "\\"),
        ("A=a\\ b\\n", "a\\ b\\n"),
        (r'A="\a\q"', "\a\\q"),
        ("B=1\nA=${B:+x}", "x"),
        ("A=${B:+x}", ""),
        ("A=${SHELL_VARIABLE:?no}", "from the shell"),
        ("A='b # c'", "b # c"),
        ('A="b # c" # d', "b # c"),
        ("A='$B ${B}'", "$B ${B}"),
        (r"A='Let\'s go'", "Let's go"),
        (r"A='a\nb'", r"a\nb"),
        (r'A="a\nb\t\"c\" \\ \$x"', 'a\nb\t"c" \\ $x'),
        ('A="two\nlines"', "two\nlines"),
        ("B=1\nA=${B}2", "12"),
        ("B=1\nA=$B", "1"),
        ("A=${B:-x}", "x"),
        ("B=\nA=${B:-x}", "x"),
        ("B=\nA=${B-x}", ""),
        ("A=${SHELL_VARIABLE}", "from the shell"),
        ('A={"gpt-4": "qwen"}', '{"gpt-4": "qwen"}'),
        ("A=1\nA=2", "2"),
        ("# A=1\nA=3", "3"),
        ("A=1\r\nB=2\r\n", "1"),
    ],
)
def test_a_value_is_read_as_compose_reads_it(line: str, value: str) -> None:
    assert envfile.parse(line, {"SHELL_VARIABLE": "from the shell"})["A"] == value


@pytest.mark.parametrize("text", ["A=1\nno equals sign", "A='open", 'A="open', "A='b' c", "1A=2"])
def test_what_compose_cannot_read_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(OpsError, match=rf"line {1 + text.count(chr(10))}"):
        envfile.parse(text)


def test_a_variable_that_must_be_set_is_named() -> None:
    with pytest.raises(OpsError, match="needs B") as caught:
        envfile.parse("A=${B:?set B to the mail server}")
    assert caught.value.fix == "Set B to the mail server."


@given(NAMES, VALUES)
def test_a_quoted_value_is_read_back(name: str, value: str) -> None:
    assert envfile.parse(f"BEFORE=1\n{name}X={envfile.quote(value)}\nAFTER=2\n") == {
        "BEFORE": "1",
        f"{name}X": value,
        "AFTER": "2",
    }


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_another_reader_of_the_format_agrees(variables: dict[str, str]) -> None:
    text = "".join(f"{name}={envfile.quote(value)}\n" for name, value in variables.items())
    read = dotenv.dotenv_values(stream=io.StringIO(text), interpolate=False)
    plain = {name: value for name, value in variables.items() if "$" not in value and "\\" not in value}
    assert {name: read[name] for name in plain} == plain


@given(st.text(st.sampled_from("AB=# '\"\\$\n{}:-x"), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(OpsError):
        assert all(set(name) <= set("ABx") for name in envfile.parse(text))


@given(
    st.lists(st.sampled_from(["A=1", "# B=2", "# words", "", "export C='x'", "D=${A}"])),
    st.sampled_from(["", "\n"]),
)
def test_extending_keeps_what_stands_there_byte_for_byte(lines: list[str], end: str) -> None:
    text = "\n".join(lines) + (end if lines else "")
    example = "# one\nA=0\n\n# two\n# E=5\n# three\nF=6\n"
    extended, added = envfile.extend(text, example)
    assert extended.startswith(text)
    assert set(added) == {"A", "E", "F"} - envfile.names(text)
    assert envfile.names(extended) >= {"A", "E", "F"}
    assert envfile.extend(extended, example) == (extended, [])
    before = envfile.parse(text)
    assert {name: envfile.parse(extended)[name] for name in before} == before


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("A=1\nB=2\n", "A=x y\nB=2\n"),
        ("# A=1\nB=2\n", "A=x y\nB=2\n"),
        ("# A=1\nA=2\n", "# A=1\nA=x y\n"),
        ("B=2", "B=2\nA=x y\n"),
        ("AA=1\n", "AA=1\nA=x y\n"),
    ],
)
def test_assigning_changes_one_line(text: str, result: str) -> None:
    assert envfile.assign(text, "A", "x y") == result.replace("x y", "'x y'")


def test_the_projects_example_can_be_read() -> None:
    example = (ROOT / ".env.example").read_text()
    assert envfile.parse(example)["COMPOSE_FILE"] == "compose.yaml"
    assert envfile.names(example) > set(envfile.parse(example))
