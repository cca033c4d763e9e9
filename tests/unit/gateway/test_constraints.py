"""Schemas and expressions whose compilation would hold up an engine are told from those that people use."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.constraints import Bounds, check_regex, check_schema
from gateway.errors import ParameterRefused
from gateway.parameters import ParameterRules

BOUNDS = ParameterRules().bounds


def refused_schema(schema: object, bounds: Bounds = BOUNDS) -> str:
    with pytest.raises(ParameterRefused) as raised:
        check_schema(schema, bounds, "response_format")
    assert raised.value.param == "response_format"
    return raised.value.message


def nested(levels: int, width: int) -> dict[str, Any]:
    """oneOf within oneOf: width to the power of levels leaves."""
    if not levels:
        return {"type": "string"}
    return {
        "oneOf": [{"type": "object", "properties": {"a": nested(levels - 1, width)}} for _ in range(width)]
    }


def doubling(levels: int) -> dict[str, Any]:
    """Small, and doubled by each definition that refers to the next one twice."""
    definitions: dict[str, Any] = {
        f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}, {"$ref": f"#/$defs/d{level + 1}"}]}
        for level in range(levels)
    }
    definitions[f"d{levels}"] = {"type": "string"}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {
            "type": "object",
            "properties": {"a": {"type": "array", "items": {"type": "integer"}, "maxItems": 10}},
        },
        {"anyOf": [{"const": 1}, {"enum": ["a", "b", None]}]},
        nested(3, 3),
        doubling(5),
        {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
        {"properties": {"self": {"$ref": "#"}}},
        {"type": "string", "pattern": "^[A-Z]{2}[0-9]{6}$", "minLength": 8},
        {"patternProperties": {"^x-": {}}, "additionalProperties": False},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_what_people_use_passes(schema: dict[str, Any]) -> None:
    check_schema(schema, BOUNDS, "response_format")


@pytest.mark.parametrize(
    "schema",
    [
        nested(8, 3),
        doubling(30),
        {"enum": ["x" * 50] * 1000},
        {"type": "array", "maxItems": 100_000},
        {"properties": {"a": {"minLength": 1_000_000}}},
        {"pattern": "(a+)+$"},
        {"patternProperties": {"(a*)*": {}}},
        {"$ref": "https://elsewhere/schema.json"},
        {"items": {"$ref": "file:///etc/passwd"}},
        "a text",
        ["a list"],
        None,
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_what_would_hold_up_an_engine_is_refused(schema: object) -> None:
    assert "response_format" in refused_schema(schema)


def test_deep_schemas_do_not_end_the_walk() -> None:
    deep: dict[str, Any] = {}
    for _ in range(150):
        deep = {"items": deep}
    check_schema(deep, BOUNDS, "response_format")


@pytest.mark.parametrize(
    "expression",
    [
        r"\d{3}-\d{4}",
        "[a-z]+@[a-z]+\\.com",
        "(yes|no)",
        "(ab)*c",
        "a{2,5}b?",
        r"\(a+\)+",
        "[(a+)]+",
        "a*?b+?",
        "x" * 512,
        "[]a]+",
        "[^]]*",
        "(a|b)+(c|d)*",
    ],
)
def test_plain_expressions_pass(expression: str) -> None:
    check_regex(expression, BOUNDS, "structured_outputs.regex")


@pytest.mark.parametrize(
    "expression",
    [
        "(a+)+",
        "(a*)*b",
        "((a|b)*c)*",
        "(a{2,3}){4}",
        "(a+){10}",
        "a{1001}",
        "a{1,1001}",
        "(?:x+y)*",
        "((a+)b)+",
        "a**",
        "x" * 513,
        "",
        5,
        None,
        "([a-z]+)*",
        "(a{5,})+",
    ],
)
def test_expressions_that_grow_without_bound_are_refused(expression: object) -> None:
    with pytest.raises(ParameterRefused):
        check_regex(expression, BOUNDS, "structured_outputs.regex")


@given(st.text(alphabet="ab()[]{}*+?\\|,0123456789", max_size=40))
def test_any_text_is_decided(expression: str) -> None:
    try:
        check_regex(expression, BOUNDS, "p")
    except ParameterRefused as error:
        assert error.param == "p"  # noqa: PT017 - either outcome is right; another exception is not
