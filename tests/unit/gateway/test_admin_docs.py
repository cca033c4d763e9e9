"""The admin API's page: any schema becomes plain HTML, whatever stands in it."""

from typing import Any

import pytest

from gateway.admin_docs import page


def schema(field: dict[str, Any], *, description: str = "") -> dict[str, Any]:
    """An API of one operation that takes one object of one field."""
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}}
    operation = {
        "operationId": "do_it",
        "description": description,
        "parameters": [{"name": "limit", "in": "query", "schema": {"type": "integer", "maximum": 9}}],
        "requestBody": body,
        "responses": {"200": body, "201": {"description": "Done"}, "422": {"description": "Hidden"}},
    }
    return {
        "info": {"title": "An <API>"},
        "paths": {"/do/{it}": {"post": operation}},
        "components": {"schemas": {"Thing": {"properties": {"field": field}, "required": ["field"]}}},
    }


def test_operations_objects_and_parameters_are_there() -> None:
    html = page(schema({"type": "string", "description": "what it is"}, description="Does it."))
    for part in (
        "An &lt;API&gt;",
        "<code>POST /do/{it}</code>",
        "Does it.",
        "limit (query)",
        "integer (…9)",
        'Takes <a href="#Thing">Thing</a>.',
        "201: Done",
        "string, required",
        "what it is",
    ):
        assert part in html
    assert "Hidden" not in html


def test_text_from_the_schema_is_never_markup() -> None:
    html = page(schema({"enum": ["<b>"], "description": "<script>"}, description='"><img>'))
    for tag in ("<b>", "<script", "<img"):
        assert tag not in html


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"type": "string", "format": "date-time"}, "date-time"),
        ({"type": "integer", "minimum": 1}, "integer (1…)"),
        ({"type": "number", "minimum": 0, "maximum": 9}, "number (0…9)"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"oneOf": [{"$ref": "#/x/Thing"}]}, '<a href="#Thing">Thing</a>'),
        ({"enum": ["a", 1]}, "<code>a</code> | <code>1</code>"),
        ({"type": "array", "items": {"type": "string"}}, "list of string"),
        ({"type": "array"}, "list of any value"),
        ({}, "any value"),
    ],
)
def test_a_type_is_a_few_words(field: dict[str, Any], words: str) -> None:
    assert f"<td>{words}, required</td>" in page(schema(field))
