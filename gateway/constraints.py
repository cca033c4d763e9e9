"""What a request may demand of constrained decoding.

An engine compiles schemas and expressions on its own CPU, for seconds or for ever if they are large: so their
size is bounded before it sees them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import ParameterRefused

# Repetitions are unrolled by the compiler.
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_DEFINITIONS = ("$defs", "definitions")
_REPEAT = re.compile(r"\{(\d*)(?:,(\d*))?\}")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sizes: of a schema in bytes and in nodes with its references followed; of an expression in characters;
    of one repetition in times; of a list of choices in entries.
    """

    schema_bytes: int
    schema_nodes: int
    regex_chars: int
    repetitions: int
    choices: int


def check_schema(schema: object, bounds: Bounds, param: str) -> None:
    """Raises ParameterRefused for a JSON schema that is none, or costs too much to compile."""
    if not isinstance(schema, dict):
        raise ParameterRefused(f"`{param}` must be a JSON schema: an object.", param=param)
    if len(orjson.dumps(schema)) > bounds.schema_bytes:
        raise ParameterRefused(
            f"The schema in `{param}` is larger than {bounds.schema_bytes} bytes, the most that is taken.",
            param=param,
        )
    _Walk(schema, bounds, param).run()


class _Walk:
    """Counts the nodes that a compiler will see: a definition as often as it is referred to."""

    def __init__(self, root: dict[str, Any], bounds: Bounds, param: str) -> None:
        self._root = root
        self._bounds = bounds
        self._param = param
        self._sizes: dict[str, int] = {}

    def run(self) -> None:
        if self._size(self._root) > self._bounds.schema_nodes:
            raise ParameterRefused(
                f"The schema in `{self._param}` has more than {self._bounds.schema_nodes} parts, with its "
                "references followed: compiling it would hold up the engine.",
                param=self._param,
            )

    def _size(self, node: object) -> int:
        if isinstance(node, list):
            return 1 + sum(self._size(item) for item in node)
        if not isinstance(node, dict):
            return 1
        self._check(node)
        reference = node.get("$ref")
        followed = self._referred(reference) if isinstance(reference, str) else 0
        return (
            1 + followed + sum(self._size(value) for name, value in node.items() if name not in _DEFINITIONS)
        )

    def _check(self, node: dict[str, Any]) -> None:
        for name in _COUNTS:
            count = node.get(name)
            if isinstance(count, int | float) and count > self._bounds.repetitions:
                raise ParameterRefused(
                    f"`{name}` in the schema of `{self._param}` is more than {self._bounds.repetitions}.",
                    param=self._param,
                )
        for pattern in _patterns(node):
            check_regex(pattern, self._bounds, self._param)

    def _referred(self, reference: str) -> int:
        """The size of a definition; while it is being counted, a reference to itself adds nothing."""
        if reference not in self._sizes:
            self._sizes[reference] = 0
            self._sizes[reference] = self._size(self._resolve(reference))
        return self._sizes[reference]

    def _resolve(self, reference: str) -> object:
        if not reference.startswith("#"):
            raise ParameterRefused(
                f"The schema in `{self._param}` refers to something outside itself.", param=self._param
            )
        found: object = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            if not isinstance(found, dict):
                return None
            found = found.get(part.replace("~1", "/").replace("~0", "~"))
        return None if found is self._root else found


def _patterns(node: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(node.get("pattern"), str):
        yield node["pattern"]
    if isinstance(node.get("patternProperties"), dict):
        yield from node["patternProperties"]


def check_regex(expression: object, bounds: Bounds, param: str) -> None:
    """Raises ParameterRefused for an expression that is too long, repeats too often, or repeats what already
    repeats: of such the compiled automaton can grow without bound.
    """
    if not isinstance(expression, str) or not expression:
        raise ParameterRefused(f"`{param}` must be a regular expression: a string.", param=param)
    if len(expression) > bounds.regex_chars:
        raise ParameterRefused(
            f"The expression in `{param}` is longer than {bounds.regex_chars} characters.", param=param
        )
    if _nested(expression, bounds.repetitions):
        raise ParameterRefused(
            f"The expression in `{param}` repeats a group that repeats itself, or repeats more than "
            f"{bounds.repetitions} times: compiling it can hold up the engine without end.",
            param=param,
        )


def _nested(expression: str, repetitions: int) -> bool:
    """Whether a quantifier stands on a group with a quantifier in it, or counts beyond `repetitions`."""
    groups = [False]  # for each open group, whether something in it repeats
    closed = False  # whether what stands just before repeats inside
    at = 0
    while at < len(expression):
        char = expression[at]
        counted = _REPEAT.match(expression, at) if char == "{" else None
        if char in "*+" or counted:
            if closed or (counted and _most(counted) > repetitions):
                return True
            groups[-1] = True
            closed = True  # a second quantifier on it would nest; `+?` and `++` are told apart below
            at = counted.end() if counted else at + 1
            at += expression[at : at + 1] in ("?", "+")
            continue
        if char == "(":
            groups.append(False)
        elif char == ")" and len(groups) > 1:
            closed = groups.pop()
            groups[-1] = groups[-1] or closed
            at += 1
            continue
        elif char == "[":
            at = _class_end(expression, at)
        elif char == "\\":
            at += 1
        closed = False
        at += 1
    return False


def _most(counted: re.Match[str]) -> int:
    low, high = counted[1], counted[2]
    return max((int(digits[:9]) for digits in (low, high) if digits), default=0)


def _class_end(expression: str, start: int) -> int:
    """The index of the `]` that ends a class, or the end of the text."""
    at = start + 1
    at += expression[at : at + 1] == "^"
    at += expression[at : at + 1] == "]"
    while at < len(expression) and expression[at] != "]":
        at += 2 if expression[at] == "\\" else 1
    return at
