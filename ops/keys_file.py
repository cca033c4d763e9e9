"""Files of keys, as `make keys ARGS="import FILE"` takes them: CSV with a head, or JSON lines."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ops.errors import OpsError

NUMBERS = (
    *("requests_per_minute", "tokens_per_minute", "parallel_requests", "tokens_per_day", "tokens_per_month"),
    *("output_cap", "output_default", "priority"),
)
WORDS = ("scopes", "models")
COLUMNS = ("name", "tenant", "plan", *WORDS, "expires_at", *NUMBERS, "over_cap")
MAX_KEYS = 1_000

_PLACE = re.compile(r"keys\.(\d+)(?:\.([A-Za-z0-9_.]+))?: (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class KeyFile:
    """`keys` as the admin API takes them; `lines` says where in the file each stood."""

    path: Path
    keys: tuple[Mapping[str, Any], ...]
    lines: tuple[int, ...]

    def in_its_words(self, reason: str) -> str:
        """What the gateway says of the n-th key, as what it says of a line."""
        found = _PLACE.fullmatch(reason)
        if found is None or int(found[1]) >= len(self.lines):
            return reason
        field = f"{found[2]}: " if found[2] else ""
        return f"{self.path} line {self.lines[int(found[1])]}: {field}{found[3]}"


def read(path: Path) -> KeyFile:
    """The file's keys. Raises OpsError: one line that names the file and the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise OpsError(f"{path} cannot be read: {error.strerror}.", "Check its name.") from None
    except UnicodeDecodeError:
        raise OpsError(f"{path} cannot be read: it is not UTF-8.", "Save it as UTF-8.") from None
    rows = list(parse(path, text))
    if not rows:
        raise OpsError(f"{path} has no keys in it.", f"Columns: {', '.join(COLUMNS)}.")
    if len(rows) > MAX_KEYS:
        raise OpsError(f"{path} has {len(rows)} keys; {MAX_KEYS} can be imported at once.", "Split the file.")
    return KeyFile(path, tuple(key for _, key in rows), tuple(line for line, _ in rows))


def parse(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Each key with its line. Raises OpsError."""
    return _json_lines(path, text) if text.lstrip()[:1] in ("{", "[") else _csv(path, text)


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    # Not splitlines: JSON's strings may hold what that takes for an end.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            key = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _wrong(path, number, f"not JSON ({error})", "One JSON object per line.") from None
        if not isinstance(key, dict):
            raise _wrong(path, number, "not a JSON object", "One JSON object per line.")
        yield number, key


def _csv(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    head = text.partition("\n")[0]
    # Spreadsheets write semicolons where the comma is the decimal mark.
    delimiter = ";" if ";" in head and "," not in head else ","
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    names: list[str] = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not names:
                names = _head(path, reader.line_num, cells)
                continue
            if len(cells) != len(names):
                raise _wrong(
                    path,
                    reader.line_num,
                    f"{len(cells)} cells under {len(names)} columns",
                    "Quote cells that have the delimiter in them.",
                )
            given = {name: cell.strip() for name, cell in zip(names, cells, strict=True) if cell.strip()}
            yield reader.line_num, {name: _cell(path, reader.line_num, name, given[name]) for name in given}
    except csv.Error as error:
        raise _wrong(path, reader.line_num, f"not CSV ({error})", "Check its quotes.") from None


def _head(path: Path, line: int, cells: list[str]) -> list[str]:
    names = [cell.strip().lower().replace("-", "_").replace(" ", "_") for cell in cells]
    for index, name in enumerate(names):
        if name not in COLUMNS or name in names[:index]:
            problem = f"the column {cells[index]!r} is {'unknown' if name not in COLUMNS else 'there twice'}"
            raise _wrong(path, line, problem, f"Columns: {', '.join(COLUMNS)}.")
    return names


def _cell(path: Path, line: int, name: str, text: str) -> Any:
    if name in WORDS:
        return text.replace(",", " ").replace(";", " ").split()
    try:
        if name in NUMBERS:
            return int(text)
        if name == "expires_at":
            return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        what = "a whole number" if name in NUMBERS else "a date, such as 2027-01-31"
        raise _wrong(path, line, f"{name}: {text!r} is not {what}", "Correct it.") from None
    return text


def _wrong(path: Path, line: int, problem: str, fix: str) -> OpsError:
    return OpsError(f"{path} line {line}: {problem}. Nothing was imported.", fix)
