"""What `make keys` prints for people, made for 80 columns. `--json` has everything."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Json = Mapping[str, Any]

_STATE_COLOURS = {"active": "green", "rotating": "cyan", "disabled": "yellow"}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def keys(records: Sequence[Json], now: datetime) -> Table:
    table = _table("id", "name", "tenant", "plan", "state", "last used", "expires")
    for record in records:
        table.add_row(
            *_cells(record["id"], record["name"], record["tenant"], record.get("plan") or "-"),
            coloured(str(record["state"])),
            *_cells(ago(record.get("last_used_at"), now), day(record.get("expires_at"))),
        )
    return table


def key(record: Json, now: datetime) -> Table:
    """One key's fields, one under the other."""
    table = Table(box=None, show_header=False)
    table.add_row("id", _bold(record["id"]))
    for name in ("name", "tenant"):
        table.add_row(name, escape(str(record[name])))
    table.add_row("state", coloured(str(record["state"])))
    for name, value in (*_rights(record), *_times(record, now)):
        table.add_row(name, escape(value))
    return table


def _rights(record: Json) -> Iterable[tuple[str, str]]:
    effective = record.get("effective")
    if effective is None:
        yield "plan", str(record.get("problem") or "-")
        return
    yield "plan", f"{effective['plan']}{'' if record.get('plan') else ' (the default)'}"
    yield "models", ", ".join(effective["models"]) or "none of those that are served"
    yield "scopes", ", ".join(effective["scopes"])
    output = f"up to {effective['output_cap']} tokens, above: {effective['over_cap']}"
    yield "output", f"{output}; {effective['output_default']} where a request names none"
    yield "priority", str(effective["priority"])
    own = [f"{name}={record[name]}" for name in OWN if record.get(name) is not None]
    yield "its own", ", ".join(own) or "nothing; all is the plan's"


# A key's own values of its plan's entries, by the names that both have.
OWN = (
    *("requests_per_minute", "tokens_per_minute", "parallel_requests", "tokens_per_day", "tokens_per_month"),
    *("output_cap", "output_default", "over_cap", "priority"),
)


def _times(record: Json, now: datetime) -> Iterable[tuple[str, str]]:
    yield "created", minute(record["created_at"])
    yield "expires", minute(record["expires_at"]) if record.get("expires_at") else "never"
    yield "last used", ago(record.get("last_used_at"), now)
    for name, field in (("disabled", "disabled_at"), ("revoked", "revoked_at")):
        if record.get(field):
            yield name, minute(record[field])
    if record["state"] == "rotating":
        yield "rotating", f"the old secret is accepted until {minute(record['previous_until'])}"


def limits(readings: Sequence[Json]) -> Table:
    table = _table("limit", "whose", right=("used", "of", "left", "resets in"))
    for reading in readings:
        whose = "everyone" if reading["scope"] == "everyone" else f"{reading['scope']} {reading['subject']}"
        shadow = " (shadow)" if reading["shadow"] else ""
        table.add_row(
            *_cells(f"{reading['name']}{shadow}", whose),
            *(number(reading[name]) for name in ("used", "amount", "remaining")),
            _length(reading.get("reset_seconds")),
        )
    return table


def usage(report: Json) -> Table:
    by = str(report["by"])
    columns = ("requests", "prompt", "completion", "total", "estimated")
    table = _table(by, *(("name",) if by == "key" else ()), right=columns)
    total = {"name": "all", "key_name": "", **report["total"]}
    for row in (*report["rows"], total):
        names = (row["name"], row.get("key_name") or "") if by == "key" else (row["name"],)
        sums = ("requests", "prompt_tokens", "completion_tokens", "total_tokens", "estimated_requests")
        if row is total:
            table.add_section()
        table.add_row(*_cells(*names), *(number(row[name]) for name in sums))
    return table


def audit(entries: Sequence[Json]) -> Table:
    table = _table("when (UTC)", "who", "did", "key", "what")
    for entry in entries:
        detail = ", ".join(_detail(entry.get("detail") or {}))
        cells = (minute(entry["at"]), entry["actor"], entry["action"], entry.get("key_id") or "-", detail)
        table.add_row(*_cells(*cells))
    return table


def _detail(values: Json) -> Iterator[str]:
    """New values, for people: moments as such, a key's own values each, peppers' names not at all."""
    for name, value in values.items():
        if name == "overrides":
            yield from _detail(value)
            continue
        if name.endswith("pepper_id"):
            continue
        is_moment = name.endswith(("_at", "_until")) and isinstance(value, int | float)
        said = minute(datetime.fromtimestamp(value, UTC).isoformat()) if is_moment else value
        yield f"{name}={'-' if said is None else said}"


def plans(view: Json) -> Table:
    columns = ("req/min", "tok/min", "parallel", "tok/day", "tok/month", "output")
    table = _table("plan", right=columns)
    found = view["plans"]
    for name, plan in found["plans"].items():
        mark = " (default)" if name == found["default_plan"] else ""
        amounts = (plan["limits"].get(limit) for limit in OWN[:5])
        cells = (number(amount) if amount is not None else "-" for amount in amounts)
        table.add_row(escape(name + mark), *cells, number(plan["output"]["cap"]))
    return table


def print_explanation(console: Console, found: Json) -> None:
    """Why a request was refused, and what would let it pass: whole lines, since commands are copied."""
    who = "nobody known"
    if found.get("key_id"):
        who = f"key {found['key_id']} of tenant {found['tenant']}, plan {found.get('plan') or '-'}"
    model = f", model {found['model']}" if found.get("model") else ""
    at = str(found["at"])[:19].replace("T", " ")
    lines = [
        f"{found['request_id']}: {found['status']} {found['code']}",
        f"{at} UTC, {found['route']}{model}, {who}",
        *("", "Why:", *(f"  - {line}" for line in found["why"])),
        *("", "What would let it pass:", *(f"  - {line}" for line in found["remedies"])),
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def coloured(state: str) -> str:
    return f"[{_STATE_COLOURS.get(state, 'red')}]{escape(state)}[/]"


def minute(moment: str) -> str:
    """To the minute: whole moments, which --json has, do not fit a terminal."""
    return moment[:16].replace("T", " ")


def day(moment: str | None) -> str:
    return moment[:10] if moment else "-"


def ago(moment: str | None, now: datetime) -> str:
    """`3 h ago`; `-` for never."""
    if not moment:
        return "-"
    passed = now - datetime.fromisoformat(moment).astimezone(UTC)
    return f"{_length(max(passed, timedelta()).total_seconds())} ago"


def number(value: int) -> str:
    return f"{value:,}"


def _length(seconds: float | None) -> str:
    """The largest unit that fits."""
    if seconds is None:
        return "-"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def _table(*left: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right")
    return table


def _cells(*values: object) -> list[str]:
    return [escape(str(value)) for value in values]


def _bold(value: object) -> str:
    return f"[bold]{escape(str(value))}[/]"
