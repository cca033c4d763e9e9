r"""Reads and extends `.env` by the rules that Docker Compose reads it with.

The rules are those of "Env file syntax" in
https://docs.docker.com/compose/how-tos/environment-variables/variable-interpolation/: `NAME=value`,
optionally after `export`; blank lines and lines that start with `#` are skipped; ` #` starts a comment in an
unquoted value; single quotes are literal; double quotes know the escapes \n \r \t \\ \" \$; unquoted and
double-quoted values interpolate $NAME, ${NAME}, ${NAME:-default}, ${NAME:?error}, ${NAME:+other} and $$.
Where that page is silent, what Compose 5.6.1 does was tried.
"""

import re
from collections.abc import Mapping

from ops.errors import OpsError

_ASSIGNMENT = re.compile(
    r"^[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)[ \t]*[=:][ \t]*", re.MULTILINE
)
_NOTHING = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_SINGLE = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_UNQUOTED = re.compile(r"[^\n]*")
_REFERENCE = re.compile(
    r"(?P<dollar>\$\$)"
    r"|\$(?:(?P<plain>[A-Za-z_][A-Za-z0-9_]*)"
    r"|\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)(?:(?P<kind>:?[-?+])(?P<word>[^}]*))?\})"
)
_ESCAPE_OR_REFERENCE = re.compile(r"\\(?P<escape>[abfnrtv\\\"$])|" + _REFERENCE.pattern)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_./:@%+,=-]*")


def parse(text: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of an env file. References are looked up in `environ` first, then in the lines above.

    Raises OpsError, with the number of the line, where Compose could not read it either.
    """
    text = text.replace("\r\n", "\n")
    values: dict[str, str] = {}
    at = 0
    while at < len(text):
        if blank := _NOTHING.match(text, at):
            at = blank.end()
            continue
        found = _ASSIGNMENT.match(text, at)
        if found is None:
            raise _unreadable(text, at)
        known = {**values, **(environ or {})}
        values[found["name"]], at = _value(text, found.end(), known)
    return values


def names(text: str) -> set[str]:
    """Every name that an env file sets or shows in a comment, `# NAME=`."""
    return set(re.findall(r"^[ \t]*(?:#[ \t]*)?(?:export[ \t]+)?([A-Z][A-Z0-9_]*)=", text, re.MULTILINE))


def assign(text: str, name: str, value: str) -> str:
    """The text with `name` set to `value`: in its line, else in its commented line, else at the end."""
    line = f"{name}={quote(value)}"
    for pattern in (rf"^{name}=[^\n]*$", rf"^#[ \t]*{name}=[^\n]*$"):
        changed, count = re.subn(pattern, lambda _: line, text, count=1, flags=re.MULTILINE)
        if count:
            return changed
    return f"{_ended(text)}{line}\n"


def quote(value: str) -> str:
    """The value as it must stand behind `NAME=` to be read back the same."""
    if _PLAIN_VALUE.fullmatch(value):
        return value
    if not re.search(r"['\\]", value):
        return f"'{value}'"
    escaped = re.sub(r'[\\"$]', lambda found: "\\" + found[0], value)
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'


def extend(text: str, example: str) -> tuple[str, list[str]]:
    """The text with what only `example` knows added at the end, and the added names. The rest stays."""
    known = names(text)
    added: list[str] = []
    blocks: list[str] = []
    comment: list[str] = []
    for line in example.splitlines():
        name = next(iter(names(line)), None)
        if name is None:
            comment = [*comment, line] if line.startswith("#") else []
            continue
        if name not in known:
            added.append(name)
            blocks += [*comment, line]
        comment = []
    return (_ended(text) + "\n" + "\n".join(blocks) + "\n", added) if added else (text, [])


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _value(text: str, at: int, known: Mapping[str, str]) -> tuple[str, int]:
    """The value that starts at `at`, and where the next line begins."""
    opening = text[at : at + 1]
    if opening in {"'", '"'}:
        found = (_SINGLE if opening == "'" else _DOUBLE).match(text, at)
        if found is None or (rest := _NOTHING.match(text, found.end())) is None:
            raise _unreadable(text, at)
        inner = found[1]
        return (inner.replace("\\'", "'") if opening == "'" else _expanded(inner, known)), rest.end()
    line = _UNQUOTED.match(text, at)
    raw = line[0] if line else ""
    raw = raw.split(" #", 1)[0]
    return _expanded(raw.strip(), known, escapes=False), at + len(line[0] if line else "") + 1


def _expanded(raw: str, known: Mapping[str, str], *, escapes: bool = True) -> str:
    """The value with its references replaced, and with its escapes where it was in double quotes."""

    def replaced(found: re.Match[str]) -> str:
        if escapes and (escape := found["escape"]):
            return _ESCAPES.get(escape, escape)
        return "$" if found["dollar"] else _looked_up(found, known)

    return (_ESCAPE_OR_REFERENCE if escapes else _REFERENCE).sub(replaced, raw)


def _looked_up(found: re.Match[str], known: Mapping[str, str]) -> str:
    name, kind, word = found["plain"] or found["braced"], found["kind"] or "", found["word"] or ""
    value = known.get(name)
    missing = value is None or (kind.startswith(":") and not value)
    if kind.endswith("?") and missing:
        raise OpsError(f".env needs {name}, which is not set.", f"{word[:1].upper()}{word[1:] or 'Set it'}.")
    if kind.endswith("+"):
        return "" if missing else word
    return word if missing else str(value)


def _unreadable(text: str, at: int) -> OpsError:
    number = text.count("\n", 0, at) + 1
    return OpsError(f".env cannot be read: line {number}.", "Write it as NAME=value; see .env.example.")
