"""The form that a request may ask of its answer: functions to call, schemas, expressions, choices. Checks as
in gateway.checks. Pure.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import jiter

from gateway import constraints
from gateway.checks import list_of, object_of
from gateway.errors import InvalidRequest, ParameterRefused

if TYPE_CHECKING:
    from gateway.parameters import ParameterRules

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_SCHEMAS: Final = ("parameters", "input_schema")
_SCHEMA_KEYS: Final = frozenset(("type", "name", "description", "schema", "strict"))


def tools(name: str, value: object, tool_choice: object, rules: "ParameterRules") -> None:
    """Functions that the model may call. Their schemas are compiled if a call is forced or one is strict."""
    forced = _forces(tool_choice)
    bounds, work = rules.bounds, 0
    for tool in list_of(name, value, rules.tools):
        if not isinstance(tool, dict):
            raise InvalidRequest(f"`{name}` must hold objects.", param=name)
        if tool.get("type", "function") not in ("function", "custom"):
            raise ParameterRefused(
                f"`{name}` may hold functions alone: the engine's host runs no tools.", param=name
            )
        if "function" in tool and not tool.keys().isdisjoint(_SCHEMAS):
            raise InvalidRequest(f"`{name}` has a schema beside `function`; it belongs into it.", param=name)
        function = object_of(name, tool.get("function", tool))
        called = function.get("name")
        if not isinstance(called, str) or not _TOOL_NAME.fullmatch(called):
            raise InvalidRequest(
                f"`{name}` must have names of 1 to 128 letters, digits and `_.:/-`.", param=name
            )
        compiled = forced or bool(function.get("strict")) or bool(tool.get("strict"))
        for schema in (function.get("parameters"), function.get("input_schema")):
            if schema is not None and compiled:
                work += constraints.check_schema(schema, bounds, name)
                constraints.check_work(work, bounds, name)
            elif schema is not None:
                constraints.check_size(schema, bounds, name)
        # Each time: the sum of many is not to be reached first.
        constraints.check_work(work, bounds, name)


def _forces(tool_choice: object) -> bool:
    kind = tool_choice.get("type") if isinstance(tool_choice, dict) else tool_choice
    return kind not in (None, "auto", "none")


def response_format(name: str, value: object, rules: "ParameterRules") -> None:
    """OpenAI's: text, json_object or json_schema with its schema one level down."""
    given = object_of(name, value)
    if given.get("type") == "json_schema":
        if given.keys() - {"type", "json_schema"}:
            raise InvalidRequest(f"`{name}` takes `type` and `json_schema`.", param=name)
        _schema(name, given.get("json_schema"), rules)
    else:
        _other_format(name, given)


def _other_format(name: str, given: Mapping[str, Any]) -> None:
    if given.get("type") not in ("text", "json_object") or len(given) != 1:
        raise ParameterRefused(
            f"`{name}` takes text, json_object and json_schema here: what others cost is not bounded.",
            param=name,
        )


def _schema(name: str, holder: object, rules: "ParameterRules") -> None:
    if not isinstance(holder, dict) or holder.get("schema") is None or holder.keys() - _SCHEMA_KEYS:
        raise InvalidRequest(f"`{name}` of type json_schema needs a `schema`, and takes a name.", param=name)
    constraints.check_schema(holder["schema"], rules.bounds, name)


def output_format(name: str, value: object, rules: "ParameterRules") -> None:
    """`text` of /v1/responses, `output_config` of /v1/messages: a format with its schema in it."""
    given = object_of(name, value)
    if given.keys() - {"format", "verbosity", "effort"}:
        raise InvalidRequest(f"`{name}` takes `format`, `verbosity` and `effort`.", param=name)
    if given.get("format") is None:
        return
    asked = object_of(name, given["format"])
    if asked.get("type") == "json_schema":
        _schema(name, asked, rules)
    else:
        _other_format(name, asked)


def structured_outputs(name: str, value: object, rules: "ParameterRules") -> None:
    """The engine's own constraints: one of json, regex, choice and json_object."""
    given = {kind: asked for kind, asked in object_of(name, value).items() if asked is not None}
    if len(given) != 1:
        raise InvalidRequest(f"`{name}` takes one of json, regex, choice and json_object.", param=name)
    kind, asked = next(iter(given.items()))
    if kind == "json":
        constraints.check_schema(_parsed(name, asked, rules), rules.bounds, name)
    elif kind == "regex":
        constraints.check_expression(asked, rules.bounds, name)
    elif kind == "choice":
        constraints.check_choices(asked, rules.bounds, name)
    elif kind != "json_object" or asked is not True:
        raise ParameterRefused(
            f"`{name}` takes json, regex, choice, and json_object: true. What others cost is not bounded, "
            "and some end an engine.",
            param=name,
        )


def _parsed(name: str, schema: object, rules: "ParameterRules") -> object:
    """A schema that is given as text."""
    if not isinstance(schema, str):
        return schema
    if len(schema) > rules.schema_bytes:
        raise ParameterRefused(
            f"The schema in `{name}` is larger than {rules.schema_bytes} bytes, the most allowed here.",
            param=name,
        )
    try:
        return jiter.from_json(schema.encode(), allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError:
        return None
