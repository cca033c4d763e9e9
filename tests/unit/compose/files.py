"""The compose files as data, Compose's own tags and variables kept as they are written."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
COMPOSE_FILES = sorted(path.name for path in ROOT.glob("compose*.yaml"))
# ${NAME}, ${NAME:-default}, ${NAME:?message}; `$$` is a plain dollar. A default may be a pair of braces.
VARIABLE = re.compile(r"(?<!\$)\$\{(?P<name>\w+)(?:(?P<kind>:?[-?+])(?P<rest>(?:\{\}|[^}])*))?\}")
# {$NAME} and {$NAME:default}.
CADDY_VARIABLE = re.compile(r"\{\$(?P<name>\w+)(?::(?P<default>[^}]*))?\}")


class _Loader(yaml.SafeLoader):
    """Reads what !override and !reset stand before."""


def _as_is(loader: _Loader, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    return None


_Loader.add_constructor("!override", _as_is)
_Loader.add_constructor("!reset", _as_is)


def load(name: str) -> dict[str, Any]:
    document = yaml.load((ROOT / name).read_text(), Loader=_Loader)  # noqa: S506 - a SafeLoader
    assert isinstance(document, dict)
    return document


def services(name: str = "compose.yaml") -> dict[str, dict[str, Any]]:
    found = load(name)["services"]
    assert isinstance(found, dict)
    return found


def variables(text: str) -> dict[str, set[str]]:
    """Every variable of a text and the defaults that it is given."""
    found: dict[str, set[str]] = {}
    for match in VARIABLE.finditer(text):
        defaults = found.setdefault(match["name"], set())
        if match["kind"] == ":-":
            defaults.add(match["rest"])
    return found


def example() -> dict[str, str]:
    """.env.example: its variables, those behind `# ` too, with the values shown."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    found = [re.fullmatch(r"(?:# )?(?P<name>[A-Z][A-Z0-9_]*)=(?P<value>.*)", line) for line in lines]
    return {match["name"]: match["value"] for match in found if match}
