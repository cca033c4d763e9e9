"""Schemas, expressions and choices: what people use passes; what holds up or ends an engine is refused."""

from typing import Any

import pytest

from gateway.constraints import (
    MAX_DEPTH,
    Bounds,
    check_choices,
    check_expression,
    check_schema,
    check_size,
)
from gateway.errors import InvalidRequest, ParameterRefused
from gateway.parameters import ParameterRules

BOUNDS = ParameterRules().bounds
STRING = {"type": "string"}


def refusal(schema: object, bounds: Bounds = BOUNDS) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        check_schema(schema, bounds, "response_format")
    assert raised.value.param == "response_format"
    return raised.value


def nested(levels: int, width: int) -> dict[str, Any]:
    """oneOf within oneOf: width to the power of levels leaves."""
    if not levels:
        return STRING
    return {
        "oneOf": [{"type": "object", "properties": {"a": nested(levels - 1, width)}} for _ in range(width)]
    }


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def chained(length: int) -> dict[str, Any]:
    """Definitions that each refer to the next, written so that the walk meets the last one first."""
    links: dict[str, Any] = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(length)}
    definitions = dict(reversed((links | {f"d{length}": STRING}).items()))
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def properties(count: int, **others: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{at}": STRING for at in range(count)}, **others}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        properties(3, required=["p0", "p1"], additionalProperties=False),
        {"type": "object", "additionalProperties": STRING},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 100},
        {"type": "array", "prefixItems": [STRING, {"type": "number"}], "items": False, "minItems": 2},
        {"anyOf": [{"const": 1}, {"enum": ["a", "b", None]}, {"type": ["string", "null"]}]},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": STRING}, "default": {"type": "x"}},
        {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
        {"definitions": {"List[int]": STRING}, "$ref": "#/definitions/List[int]"},
        {"properties": {"self": {"$ref": "#"}, "first": {"$ref": "#/properties/self"}}},
        {"type": "string", "pattern": "^[A-Z]{2}[0-9]{6}$"},
        {"type": "string", "minLength": 1, "maxLength": 50, "title": "Name", "description": "Theirs"},
        {"type": "string", "format": "date-time"},
        {"type": "integer", "minimum": 0, "maximum": 150},
        {"type": "number", "exclusiveMinimum": -0.5},
        {"properties": {"format": STRING, "not": STRING, "type": STRING, "é": True}},
        {"oneOf": [properties(1), properties(2)], "discriminator": {"propertyName": "p0"}},
        properties(100),
        properties(500, required=[f"p{at}" for at in range(500)]),
        {"enum": [f"value {at}" for at in range(1000)]},
        nested(5, 3),
        deep(MAX_DEPTH - 1),
        chained(MAX_DEPTH - 2),
        {"properties": {f"p{at}": {"type": "string", "maxLength": 50} for at in range(20)}},
    ],
    ids=lambda schema: str(schema)[:60],
)
def test_what_people_use_passes(schema: dict[str, Any]) -> None:
    assert 1 <= check_schema(schema, BOUNDS, "response_format") <= BOUNDS.work


@pytest.mark.parametrize(
    "schema",
    [
        nested(8, 3),
        {"type": "string", "maxLength": 150},
        {"type": "string", "minLength": 150},
        {"properties": {f"p{at}": {"type": "string", "maxLength": 10 + at} for at in range(10)}},
        {"type": "array", "items": STRING, "minItems": 10**12},
        {"properties": {f"p{at}": {"items": STRING, "maxItems": at} for at in range(150)}},
        properties(300),
        properties(110, additionalProperties=True),
        {"properties": {f"p{at}": {"type": "number", "minimum": at, "maximum": 1e6} for at in range(80)}},
        {"enum": list(range(5000))},
        {"enum": ["x" * 1000] * 32},
        {"anyOf": [{} for _ in range(1000)]},
        {"type": "string", "pattern": ".{0,150}"},
    ],
    ids=lambda schema: str(schema)[:60],
)
def test_what_takes_long_to_compile_is_refused(schema: dict[str, Any]) -> None:
    error = refusal(schema, ParameterRules(schema_bytes=1_000_000).bounds)
    assert isinstance(error, ParameterRefused)
    assert "units of work" in error.message


def test_what_stands_twice_is_compiled_once() -> None:
    bounded = {"type": "string", "maxLength": 40}
    once = check_schema({"properties": {"a": bounded}}, BOUNDS, "p")
    twice = check_schema({"properties": {"a": bounded, "b": bounded}}, BOUNDS, "p")
    assert twice - once < 10


def test_a_longer_text_costs_no_more_from_some_length_on() -> None:
    wide = ParameterRules(constraint_work=100_000).bounds
    costs = [check_schema({"type": "string", "maxLength": length}, wide, "p") for length in (100, 500, 4000)]
    assert costs[0] < costs[1] == costs[2]


def test_a_definition_costs_once_however_often_it_is_referred_to() -> None:
    """As many references that each double would be a bomb to who followed them; compilers do not."""
    definitions: dict[str, Any] = {
        f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(30)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": {**definitions, "d30": STRING}}
    assert check_schema(schema, BOUNDS, "p") < 200


@pytest.mark.parametrize(
    "schema",
    [
        *({"type": "object", name: {}} for name in ("not", "if", "patternProperties", "propertyNames")),
        {"type": "array", "items": STRING, "uniqueItems": True},
        {"type": "array", "contains": STRING},
        {"type": "integer", "multipleOf": 3},
        {"allOf": [STRING, STRING]},
        {"type": "string", "format": "colour"},
        {"type": "string", "format": ["date"]},
        {"type": "string", "format": "date", "maxLength": 10},
        {"type": "string", "pattern": "a", "minLength": 1},
        {"type": "string", "pattern": r"\p{L}"},
        {"type": "string", "pattern": "(a+)+"},
        {"$ref": "https://elsewhere/schema.json"},
        {"items": {"$ref": "file:///etc/passwd"}},
        {"$ref": None},
        *({"properties": {name: STRING}} for name in ('"', "\\", "\n", "\x00")),
        {"$defs": {"a\nb": STRING}},
        {"default": {"type": "array", "uniqueItems": True}},
        {"x-order": [{"type": "string", "format": "colour"}]},
        deep(MAX_DEPTH + 1),
        chained(MAX_DEPTH + 2),
    ],
    ids=lambda schema: str(schema)[:60],
)
def test_what_engines_leave_out_or_read_differently_is_refused(schema: dict[str, Any]) -> None:
    assert isinstance(refusal(schema), ParameterRefused)


@pytest.mark.parametrize(
    "schema",
    [
        "a text",
        ["a list"],
        None,
        True,
        1,
        {"type": "nonsense"},
        {"type": []},
        {"type": [5]},
        {"type": {}},
        {"properties": []},
        {"properties": {"a": "string"}},
        {"items": [STRING]},
        {"items": None},
        {"additionalProperties": "no"},
        {"anyOf": []},
        {"anyOf": {}},
        {"enum": []},
        {"enum": "a"},
        {"required": "a"},
        {"required": [1]},
        {"minLength": -1},
        {"maxLength": 1.0},
        {"maxLength": True},
        {"maxItems": "5"},
        {"minLength": 5, "maxLength": 1},
        {"minItems": 1, "type": "array"},
        {"minItems": 2, "prefixItems": [STRING]},
        {"minItems": 1, "items": False},
        {"maxItems": 0, "prefixItems": [STRING]},
        {"prefixItems": [False]},
        {"prefixItems": {"a": STRING}},
        {"minimum": "0"},
        {"minimum": True},
        {"minimum": 10**30},
        {"minimum": 5, "maximum": 1},
        {"type": "integer", "minimum": 1.5},
        {"type": ["integer", "null"], "exclusiveMaximum": 0.5},
        {"pattern": 5},
        {"pattern": ""},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#/$defs/a/0", "$defs": {"a": []}},
    ],
    ids=lambda schema: str(schema)[:60],
)
def test_what_is_malformed_is_called_so(schema: object) -> None:
    assert refusal(schema).code == "invalid_parameter"


def test_a_schema_that_nobody_compiles_is_bounded_in_bytes_alone() -> None:
    assert check_size({"uniqueItems": True, "type": "nonsense"}, BOUNDS, "tools")
    with pytest.raises(ParameterRefused, match="32768 bytes"):
        check_size({"description": "x" * 32_768}, BOUNDS, "tools")
    with pytest.raises(InvalidRequest, match="64 bits"):
        check_size({"const": 2**64}, BOUNDS, "tools")


@pytest.mark.parametrize("expression", ["[a-z]{3,20}( [a-z]{3,20}){2}", ".*", ".{0,64}", "x" * 256])
def test_expressions_within_the_bounds_pass(expression: str) -> None:
    assert check_expression(expression, BOUNDS, "p") <= BOUNDS.work


@pytest.mark.parametrize(
    "expression",
    ["(a+)+b", ".{0,150}", ".?" * 24, ".*a.{20}", "x" * 1025, "a{9999}", r"\p{L}", "\x00", "", 5, None, []],
)
def test_other_expressions_are_refused(expression: object) -> None:
    with pytest.raises(InvalidRequest) as raised:
        check_expression(expression, BOUNDS, "structured_outputs")
    assert raised.value.param == "structured_outputs"


def test_a_plan_may_allow_repetition_within_repetition() -> None:
    assert check_expression(r"(\d+,)*\d+", ParameterRules(nested_repetition=True).bounds, "p") < 100


@pytest.mark.parametrize("choices", [["yes", "no"], ["👩‍👩‍👧", '"quoted" \\ é'], ["x" * 1000], [" "]])
def test_choices_of_any_plain_text_pass(choices: list[str]) -> None:
    check_choices(choices, BOUNDS, "p")


@pytest.mark.parametrize(
    "choices",
    [[], [""], ["a", 1], ["a\nb"], ["\x00"], ["x"] * 257, ["x" * 1000] * 100, "yes", None, {"a": 1}, [None]],
    ids=lambda choices: str(choices)[:20],
)
def test_choices_that_could_end_or_hold_up_an_engine_are_refused(choices: object) -> None:
    with pytest.raises(InvalidRequest) as raised:
        check_choices(choices, BOUNDS, "structured_outputs")
    assert raised.value.param == "structured_outputs"
