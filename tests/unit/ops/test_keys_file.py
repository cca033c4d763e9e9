"""Files of keys: CSV as people and spreadsheets write it, JSON lines, and one line for whatever is wrong."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin_views import MAX_IMPORT, OVERRIDES, NewKey
from ops import keys_file, keys_tables
from ops.errors import OpsError


def parsed(tmp_path: Path, text: str | bytes) -> keys_file.KeyFile:
    path = tmp_path / "keys"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return keys_file.read(path)


def test_csv_has_a_head_and_an_empty_cell_is_not_given(tmp_path: Path) -> None:
    found = parsed(
        tmp_path,
        "name,tenant,plan,scopes,requests_per_minute\n"
        'alice,web,,"generate, embed",120\n'
        "\n"
        '"bob, the ""builder""",,wide,,\n',
    )
    assert found.keys == (
        {"name": "alice", "tenant": "web", "scopes": ["generate", "embed"], "requests_per_minute": 120},
        {"name": 'bob, the "builder"', "plan": "wide"},
    )
    assert found.lines == (2, 4)


def test_csv_as_a_spreadsheet_writes_it(tmp_path: Path) -> None:
    found = parsed(tmp_path, b"\xef\xbb\xbfName;Expires-At;Models\r\nZo\xc3\xab;2027-01-31;a b\r\n")
    (key,) = found.keys
    assert key["name"] == "Zoë"
    assert key["models"] == ["a", "b"]
    assert key["expires_at"].startswith("2027-01-31T00:00:00")
    assert len(key["expires_at"]) > len("2027-01-31T00:00:00")


def test_json_lines_go_as_they_are(tmp_path: Path) -> None:
    found = parsed(tmp_path, '\n{"name": "a\u2028b", "priority": 3}\n\n{"id": "x", "digest": "y"}\r\n')
    assert found.keys == ({"name": "a\u2028b", "priority": 3}, {"id": "x", "digest": "y"})
    assert found.lines == (2, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no keys in it"),
        ("name\n", "no keys in it"),
        ("\n\n", "no keys in it"),
        ("name,color\nalice,red\n", "line 1: the column 'color' is unknown"),
        ("name,name\na,b\n", "line 1: the column 'name' is there twice"),
        ("name,tenant\nalice\n", "line 2: 1 cells under 2 columns"),
        ("name\nalice\nbob,web\n", "line 3: 2 cells under 1 columns"),
        ("name,priority\nalice,high\n", "line 2: priority: 'high' is not a whole number"),
        ("name,output_cap\nalice,1.5\n", "line 2: output_cap: '1.5' is not a whole number"),
        ("name,expires_at\nalice,soon\n", "line 2: expires_at: 'soon' is not a date"),
        ('name\n"ali"ce\n', "line 2: not CSV"),
        ('name\n"alice\n', "not CSV"),
        ('{"name": "alice"}\n{"name": \n', "line 2: not JSON"),
        ('{"name": "alice"}\n7\n', "line 2: not a JSON object"),
        ('[{"name": "alice"}]', "line 1: not a JSON object"),
        ("{" * 3 + "[" * 100_000, "line 1: not JSON"),
        ("name\n" + "x\n" * 1001, "1001 keys; 1000 can be imported at once"),
        (b"name\n\xff\n", "cannot be read"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(OpsError) as caught:
        parsed(tmp_path, text)
    assert said in caught.value.message
    assert "\n" not in caught.value.message


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(OpsError, match="cannot be read"):
            keys_file.read(path)


def test_what_the_gateway_says_of_a_key_is_said_of_its_line(tmp_path: Path) -> None:
    found = parsed(tmp_path, "name\nalice\n\nbob\n")
    assert found.in_its_words("keys.1.plan: no such plan") == f"{found.path} line 4: plan: no such plan"
    assert found.in_its_words("keys.0: bad") == f"{found.path} line 2: bad"
    assert found.in_its_words("keys.9.plan: bad") == "keys.9.plan: bad"
    assert found.in_its_words("keys: too many") == "keys: too many"


def test_the_columns_are_what_a_key_can_have() -> None:
    assert set(keys_file.COLUMNS) == set(NewKey.model_fields)
    assert (*keys_file.NUMBERS, "over_cap") == tuple(sorted(OVERRIDES, key=_order))
    assert set(keys_tables.OWN) == set(OVERRIDES)
    assert keys_file.MAX_KEYS == MAX_IMPORT


def _order(name: str) -> int:
    return [*keys_file.NUMBERS, "over_cap"].index(name)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "name": st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).map(
                    str.strip
                )
            },
            optional={"priority": st.integers(), "tenant": st.sampled_from(["web", "a,b", 'a"b', "a;b"])},
        ).filter(lambda key: key["name"]),
        min_size=1,
        max_size=5,
    )
)
def test_any_csv_that_a_writer_writes_is_read_back(keys: list[dict[str, Any]]) -> None:
    out = io.StringIO()
    writer = csv.DictWriter(out, ["name", "tenant", "priority"])
    writer.writeheader()
    writer.writerows(keys)
    rows = keys_file.parse(Path("keys.csv"), out.getvalue())
    assert [dict(key) for _, key in rows] == keys
    assert json.dumps([key for _, key in rows])
