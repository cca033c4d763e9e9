"""What a request may demand of constrained decoding.

An engine compiles schemas and expressions on its own CPU, and what its compilers read differently ends vLLM
0.16. So what is taken is what they read alike, of a bounded cost. docs/parameters.md has the measurements.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway import automaton
from gateway.errors import InvalidRequest, ParameterRefused
from gateway.expressions import ANY, CONTROL, UnreadableExpression, cost_of
from gateway.fields import names
from gateway.syntax import Unreadable

MAX_DEPTH = 64  # schemas within schemas
LONGEST_EXPRESSION = 1024  # characters
# Units of work, as in gateway.expressions.
_LONGEST_LENGTH = 200  # of a text, in characters: longer ones cost no more
_UNTYPED = 5  # a schema that allows anything
_FORMAT = 100  # the dearest formats; each is compiled once
_NUMBER_RANGE = 28
_OPEN_PROPERTY = 40  # a property beside others that have no name
_LITERAL_SQUARES = 3_500  # a literal's length squared, in units of work (64 of 1,000 characters: 9.9 s)

_TYPES = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))
_FORMATS = names(
    "email date time date-time duration ipv4 ipv6 hostname uuid uri uri-reference uri-template "
    "json-pointer relative-json-pointer"
)
# Constraints that an engine leaves out silently, or for which it changes its compiler.
_IGNORED = names(
    "not if then else dependentRequired dependentSchemas dependencies unevaluatedItems "
    "unevaluatedProperties additionalItems contains minContains maxContains uniqueItems multipleOf "
    "patternProperties propertyNames minProperties maxProperties $dynamicRef $recursiveRef"
)
_NAMED = ("properties", "$defs", "definitions")  # names, each with a schema
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
_SCHEMAS = frozenset((*_NAMED, *_LISTED, *_SINGLE))
_CONFUSING = _IGNORED | {"format", "pattern"}
_SIZES = (("minLength", "maxLength"), ("minItems", "maxItems"))
_RANGES = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LARGEST_NUMBER = 2**53
_UNQUOTED = re.compile(r'["\\\x00-\x1f\x7f]')
_MEANING = frozenset(("type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf", "properties", "items"))


@dataclass(frozen=True, slots=True)
class Bounds:
    """The size of a schema in bytes; the work of compiling one constraint, in units of about half a
    millisecond on one core; entries of a list of choices; whether a repetition may hold another that varies.
    """

    schema_bytes: int
    work: int
    choices: int
    nested_repetition: bool


def check_size(schema: object, bounds: Bounds, param: str) -> dict[str, Any]:
    """The bound of a schema that no engine compiles. Raises InvalidRequest, ParameterRefused."""
    if not isinstance(schema, dict):
        raise InvalidRequest(f"`{param}` must be a JSON schema: an object.", param=param)
    try:
        size = len(orjson.dumps(schema))
    except orjson.JSONEncodeError:
        raise InvalidRequest(f"`{param}` holds an integer beyond 64 bits.", param=param) from None
    if size > bounds.schema_bytes:
        raise ParameterRefused(
            f"The schema in `{param}` is larger than {bounds.schema_bytes} bytes, the most allowed here.",
            param=param,
        )
    return schema


def check_schema(schema: object, bounds: Bounds, param: str) -> int:
    """The work of a schema that an engine compiles. Raises InvalidRequest for one that is malformed,
    ParameterRefused for one that costs too much or that engines read differently.
    """
    root = check_size(schema, bounds, param)
    return _Schema(root, bounds, param).work()


def check_work(work: int, bounds: Bounds, param: str) -> None:
    """Raises ParameterRefused beyond the bound."""
    if work > bounds.work:
        raise ParameterRefused(
            f"`{param}` takes an engine too long to compile: more than {bounds.work} units of work. Bounded "
            "lengths and repetitions, number ranges and optional properties cost most.",
            param=param,
        )


def check_expression(expression: object, bounds: Bounds, param: str) -> int:
    """The work of a regular expression. Raises as `check_schema` does."""
    if not isinstance(expression, str) or not expression:
        raise InvalidRequest(f"`{param}` must be a regular expression: a text.", param=param)
    if len(expression) > LONGEST_EXPRESSION:
        raise ParameterRefused(
            f"The expression in `{param}` is longer than {LONGEST_EXPRESSION} characters.", param=param
        )
    try:
        cost = cost_of(expression)
        work = max(cost.work, automaton.work(expression))
    except (UnreadableExpression, Unreadable) as error:
        raise ParameterRefused(
            f"The expression in `{param}` is outside what engines read alike: {error}.", param=param
        ) from None
    if cost.nests and not bounds.nested_repetition:
        raise ParameterRefused(
            f"The expression in `{param}` repeats what itself repeats: some compilers never end on such.",
            param=param,
        )
    check_work(work, bounds, param)
    return work


def check_choices(choices: object, bounds: Bounds, param: str) -> None:
    """A list of answers to choose from. Raises as `check_schema` does."""
    if not isinstance(choices, list) or not choices:
        raise InvalidRequest(f"`{param}` must be a list that is not empty.", param=param)
    if len(choices) > bounds.choices:
        raise ParameterRefused(
            f"`{param}` has more than {bounds.choices} entries, the most allowed here.", param=param
        )
    for one in choices:
        # An engine makes a grammar of them, with none but quotes and backslashes escaped.
        if not isinstance(one, str) or not one or CONTROL.search(one):
            raise ParameterRefused(
                f"`{param}` must hold texts without control characters: such end an engine.", param=param
            )
    check_work(_literals(choices), bounds, param)


class _Schema:
    """One walk over a schema. A definition counts once, however often it is referred to: so it compiles."""

    def __init__(self, root: dict[str, Any], bounds: Bounds, param: str) -> None:
        self._root = root
        self._bounds = bounds
        self._param = param
        self._work = 0
        self._seen: set[tuple[object, ...]] = set()  # what is compiled once if it stands twice
        self._heights: dict[int, int] = {}  # of the schemas walked, by identity

    def work(self) -> int:
        """In units. Raises InvalidRequest or ParameterRefused."""
        self._schema(self._root, 0)
        return self._work

    def _schema(self, node: object, depth: int) -> int:
        """How many schemas deep it is from here, references followed; one back to itself adds nothing."""
        if isinstance(node, bool):
            self._work += _UNTYPED
            check_work(self._work, self._bounds, self._param)
            return 0
        if not isinstance(node, dict):
            raise self._malformed("a schema within it must be an object")
        if depth + self._heights.get(id(node), 0) > MAX_DEPTH:
            raise self._refused(f"it is more than {MAX_DEPTH} schemas deep, with its references followed")
        if id(node) not in self._heights:
            self._heights[id(node)] = 0
            self._check(node)
            check_work(self._work, self._bounds, self._param)  # before more is looked at
            heights = [self._schema(child, depth + 1) for child in self._children(node)]
            self._heights[id(node)] = 1 + max(heights, default=0)
        return self._heights[id(node)]

    def _check(self, node: dict[str, Any]) -> None:
        self._work += 1 if node.keys() & _MEANING else _UNTYPED
        if ignored := node.keys() & _IGNORED:
            raise self._refused(f"an engine would leave out `{min(ignored)}`, silently")
        kinds = self._kinds(node)
        self._values(node)
        self._string(node)
        self._sizes(node)
        self._array(node)
        self._numbers(node, kinds)
        self._object(node)

    def _children(self, node: Mapping[str, Any]) -> Iterator[object]:
        for name in _NAMED:
            if name in node:
                yield from self._named(node, name)
        for name in _LISTED:
            if name in node:
                members = self._typed(node, name, list)
                if not members:
                    raise self._malformed(f"`{name}` must not be empty")
                if name == "allOf" and len(members) > 1:
                    raise self._refused("an engine would leave out `allOf` of more than one, silently")
                yield from members
        for name in _SINGLE:
            if name in node:
                yield node[name]
        if "$ref" in node:
            yield self._referred(node["$ref"])

    def _named(self, node: Mapping[str, Any], name: str) -> Iterable[object]:
        named: dict[str, Any] = self._typed(node, name, dict)
        if any(_UNQUOTED.search(key) for key in named):
            raise self._refused("quotes, backslashes and control characters in a name end an engine")
        return named.values()

    def _kinds(self, node: Mapping[str, Any]) -> list[str]:
        if "type" not in node:
            return []
        kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
        if not kinds or not all(isinstance(kind, str) and kind in _TYPES for kind in kinds):
            raise self._malformed(f"`type` must be of {', '.join(sorted(_TYPES))}")
        return kinds

    def _values(self, node: Mapping[str, Any]) -> None:
        if "enum" in node:
            values = self._typed(node, "enum", list)
            if not values:
                raise self._malformed("`enum` must not be empty")
            self._work += len(values) + _literals(values)
        for name, value in node.items():
            if name not in _SCHEMAS:
                self._plain(value)

    def _plain(self, value: object) -> None:
        """What is no schema; but an engine that looks for constraints finds them there too."""
        if isinstance(value, list):
            for one in value:
                self._plain(one)
        elif isinstance(value, dict):
            if "type" in value and (ignored := value.keys() & _CONFUSING):
                raise self._refused(f"an engine would take a value's `{min(ignored)}` for a constraint")
            for one in value.values():
                self._plain(one)

    def _string(self, node: Mapping[str, Any]) -> None:
        if "format" in node:
            if not isinstance(node["format"], str) or node["format"] not in _FORMATS:
                raise self._refused(f"engines know the formats {', '.join(sorted(_FORMATS))}")
            self._once("format", node["format"], _FORMAT)
        if ("pattern" in node or "format" in node) and ("minLength" in node or "maxLength" in node):
            raise self._refused("an engine would leave out the length of what has a `pattern` or `format`")
        if "pattern" in node:
            self._once(
                "pattern", node["pattern"], check_expression(node["pattern"], self._bounds, self._param)
            )

    def _once(self, kind: str, value: object, work: int) -> None:
        if (kind, value) not in self._seen:
            self._seen.add((kind, value))
            self._work += work

    def _sizes(self, node: Mapping[str, Any]) -> None:
        for low_name, high_name in _SIZES:
            low, high = node.get(low_name), node.get(high_name)
            for name, size in ((low_name, low), (high_name, high)):
                if name in node and (type(size) is not int or size < 0):
                    raise self._malformed(f"`{name}` must be a whole number from 0")
            if low is not None and high is not None and low > high:
                raise self._malformed(f"`{low_name}` is more than `{high_name}`")
            most = max(low or 0, high or 0)
            if high_name == "maxLength" and most:
                self._once(high_name, (low, high), min(most, _LONGEST_LENGTH) * ANY)
            else:
                self._work += most

    def _array(self, node: Mapping[str, Any]) -> None:
        listed = node.get("prefixItems") or []
        if not isinstance(listed, list) or any(one is False for one in listed):
            raise self._malformed("`prefixItems` must hold schemas that something fits")
        if node.get("items", False) is False and node.get("minItems", 0) > len(listed):
            raise self._malformed("`minItems` needs as many `items`")
        if node.get("maxItems", len(listed)) < len(listed):
            raise self._malformed("`maxItems` is less than there are `prefixItems`")

    def _numbers(self, node: Mapping[str, Any], kinds: list[str]) -> None:
        given = [name for name in _RANGES if name in node]
        for name in given:
            value = node[name]
            if type(value) not in (int, float) or not -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER:
                raise self._malformed(f"`{name}` must be a number, of 53 bits at most")
            if "integer" in kinds and value != int(value):
                raise self._malformed(f"`{name}` of an integer must be whole")
        low = max((node[name] for name in _RANGES[::2] if name in node), default=None)
        high = min((node[name] for name in _RANGES[1::2] if name in node), default=None)
        if low is not None and high is not None and low > high:
            raise self._malformed("no number is in its range")
        self._work += _NUMBER_RANGE * len(given)

    def _object(self, node: Mapping[str, Any]) -> None:
        required = self._typed(node, "required", list) if "required" in node else []
        if not all(isinstance(name, str) for name in required):
            raise self._malformed("`required` must hold names")
        properties = self._typed(node, "properties", dict) if "properties" in node else {}
        optional = len(properties.keys() - set(required))
        self._work += optional * optional // 20
        if node.get("additionalProperties", False) is not False:
            self._work += _OPEN_PROPERTY * len(properties)

    def _referred(self, reference: object) -> object:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise self._refused("`$ref` must refer to a definition within it")
        found: object = self._root
        for part in reference.split("/")[1:]:
            found = found.get(part) if isinstance(found, dict) else None
        if not isinstance(found, dict | bool):
            raise self._malformed("a `$ref` refers to nothing")
        return found

    def _typed(self, node: Mapping[str, Any], name: str, kind: type) -> Any:
        if not isinstance(node[name], kind):
            raise self._malformed(f"`{name}` must be {'an object' if kind is dict else 'a list'}")
        return node[name]

    def _malformed(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"The schema in `{self._param}` is malformed: {what}.", param=self._param)

    def _refused(self, why: str) -> ParameterRefused:
        return ParameterRefused(f"The schema in `{self._param}` is not taken: {why}.", param=self._param)


def _literals(values: Iterable[object]) -> int:
    return sum(len(one) ** 2 for one in values if isinstance(one, str)) // _LITERAL_SQUARES
