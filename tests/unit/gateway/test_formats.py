"""Functions and formats: a schema is looked at wherever it stands, as far as an engine would compile it."""

import json
from typing import Any

import pytest

from gateway import formats
from gateway.errors import InvalidRequest, ParameterRefused
from gateway.parameters import ParameterRules

RULES = ParameterRules()
GOOD: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
# Nobody could compile it, and an engine would leave it out silently.
BAD: dict[str, Any] = {"type": "object", "patternProperties": {"(a+)+": {}}}
NAMED = {"type": "function", "function": {"name": "f"}}


def chat(schema: object, **others: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": schema, **others}}]


def responses(schema: object, **others: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "name": "f", "parameters": schema, **others}]


def messages(schema: object, **others: Any) -> list[dict[str, Any]]:
    return [{"name": "f", "input_schema": schema, **others}]


FORMS = pytest.mark.parametrize("form", [chat, responses, messages], ids=["chat", "responses", "messages"])


@FORMS
@pytest.mark.parametrize("choice", [None, "auto", "none", {"type": "auto"}, {"type": "none"}])
def test_a_schema_that_no_call_is_forced_to_may_have_any_keyword(form: Any, choice: object) -> None:
    formats.tools("tools", form(BAD), choice, RULES)
    with pytest.raises(ParameterRefused, match="bytes"):
        formats.tools("tools", form({"description": "x" * 40_000}), choice, RULES)


@FORMS
@pytest.mark.parametrize("choice", ["required", {"type": "any"}, {"type": "tool", "name": "f"}, NAMED, 5, []])
def test_a_schema_that_a_call_is_forced_to_is_compiled(form: Any, choice: object) -> None:
    formats.tools("tools", form(GOOD), choice, RULES)
    with pytest.raises(ParameterRefused, match="patternProperties"):
        formats.tools("tools", form(BAD), choice, RULES)


@FORMS
def test_a_strict_schema_is_compiled(form: Any) -> None:
    formats.tools("tools", form(BAD, strict=False), "auto", RULES)
    with pytest.raises(ParameterRefused, match="patternProperties"):
        formats.tools("tools", form(BAD, strict=True), "auto", RULES)


def test_all_schemas_that_are_compiled_count_together() -> None:
    dear = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 100}}}
    formats.tools("tools", chat(dear), "required", RULES)
    with pytest.raises(ParameterRefused, match="units of work"):
        formats.tools("tools", chat(dear) * 2, "required", RULES)


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "mcp", "server_url": "http://inside"},
        {"type": "code_interpreter"},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "function", "function": {"name": "f"}, "parameters": BAD},
        {"type": "function", "function": {"name": "f"}, "input_schema": BAD},
        {"type": "function", "function": "f"},
        {"type": "function", "function": {}},
        {"type": "function", "function": {"name": 5}},
        {"type": "function", "function": {"name": 'f"\n'}},
        {"type": "function", "function": {"name": ""}},
        {"type": "function", "function": {"name": "x" * 129}},
        {"type": "function", "function": {"name": "f", "parameters": "x"}},
        {"type": ["function"], "name": "f"},
        "f",
        None,
    ],
    ids=str,
)
def test_other_tools_are_refused(tool: object) -> None:
    with pytest.raises(InvalidRequest) as raised:
        formats.tools("tools", [tool], "auto", RULES)
    assert raised.value.param == "tools"


@pytest.mark.parametrize(
    "value",
    [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": GOOD, "strict": True}},
    ],
)
def test_formats_of_chat_pass(value: object) -> None:
    formats.response_format("response_format", value, RULES)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "json",
        {},
        {"type": "json"},
        {"type": ["text"]},
        {"type": "json_schema"},
        {"type": "json_schema", "schema": GOOD},
        {"type": "json_schema", "json_schema": None},
        {"type": "json_schema", "json_schema": {"name": "n"}},
        {"type": "json_schema", "json_schema": {"schema": BAD}},
        {"type": "json_schema", "json_schema": {"schema": GOOD, "json_schema": BAD}},
        {"type": "json_schema", "json_schema": {"schema": GOOD}, "schema": BAD},
        {"type": "json_object", "json_schema": {"schema": BAD}},
        {"type": "structural_tag", "structures": [], "triggers": []},
        {"type": "structural_tag", "format": {}},
    ],
    ids=str,
)
def test_other_formats_of_chat_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest) as raised:
        formats.response_format("response_format", value, RULES)
    assert raised.value.param == "response_format"


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"verbosity": "low"},
        {"effort": "high"},
        {"format": None},
        {"format": {"type": "text"}},
        {"format": {"type": "json_schema", "name": "n", "schema": GOOD, "strict": True}},
    ],
)
def test_formats_of_responses_and_messages_pass(value: object) -> None:
    formats.output_format("text", value, RULES)


@pytest.mark.parametrize(
    "value",
    [
        "text",
        {"schema": BAD},
        {"format": "text"},
        {"format": {"type": "json_schema", "json_schema": {"schema": GOOD}}},
        {"format": {"type": "json_schema", "schema": GOOD, "json_schema": {"schema": BAD}}},
        {"format": {"type": "json_schema", "schema": BAD}},
        {"format": {"type": "grammar", "definition": "x"}},
    ],
    ids=str,
)
def test_other_formats_of_responses_and_messages_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest) as raised:
        formats.output_format("text", value, RULES)
    assert raised.value.param == "text"


@pytest.mark.parametrize(
    "value",
    [
        {"json": GOOD},
        {"json": json.dumps(GOOD), "regex": None},
        {"regex": r"\d{3}"},
        {"choice": ["yes", "no"]},
        {"json_object": True},
    ],
)
def test_constraints_pass(value: object) -> None:
    formats.structured_outputs("structured_outputs", value, RULES)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"json": None},
        {"json": GOOD, "regex": "a"},
        {"json": ""},
        {"json": "{"},
        {"json": "[]"},
        {"json": "1"},
        {"json": '{"type": "string", "type": "object"}'},
        {"json": '{"const": NaN}'},
        {"json": json.dumps(BAD)},
        {"json": BAD},
        {"json": " " * 40_000 + "{}"},
        {"regex": ""},
        {"regex": "\x00"},
        {"regex": "(a+)+"},
        {"choice": []},
        {"choice": ["\n"]},
        {"json_object": False},
        {"json_object": 1},
        {"grammar": "root ::= 'x'"},
        {"structural_tag": "{}"},
        {"whitespace_pattern": "(a+)+"},
        {"_backend": "outlines"},
    ],
    ids=lambda value: str(value)[:60],
)
def test_constraints_that_end_or_hold_up_an_engine_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest) as raised:
        formats.structured_outputs("structured_outputs", value, RULES)
    assert raised.value.param == "structured_outputs"
