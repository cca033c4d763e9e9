"""What the `keys` commands share: the way to the gateway, how a key is handed out, how options are read."""
# As in ops.cli: modules are imported where they are used.
# ruff: noqa: PLC0415

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ops.errors import OpsError
from ops.site import Site

if TYPE_CHECKING:
    from ops.keys import Admin

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id, from the list.")]

_LENGTH = re.compile(r"(\d{1,6})(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True)
class Desk:
    """What every command has: the site, the terminal, the gateway. `direct`: not through Docker."""

    site: Site
    console: Console
    admin: "Admin"
    direct: bool

    def show(self, table: Any) -> None:
        self.console.print(table)

    def show_json(self, value: object) -> None:
        print(json.dumps(value, indent=2))

    def note(self, line: str) -> None:
        """For people, beside what scripts read."""
        print(line, file=sys.stderr)


def connect(site: Site, console: Console, url: str | None, token_file: Path | None) -> Desk:
    """Through Docker, or to an admin API at `url`. Raises OpsError."""
    from ops.docker import Docker
    from ops.keys import Admin
    from ops.keys_transport import ExecTransport, HttpTransport, operator

    if (url is None) != (token_file is None):
        raise OpsError("--admin-url and --admin-token-file belong together.", "Give both, or neither.")
    actor = operator(site.environ)
    if url is not None and token_file is not None:
        return Desk(site, console, Admin(HttpTransport(url, token_file, actor)), direct=True)
    return Desk(site, console, Admin(ExecTransport(Docker(site.commands), actor)), direct=False)


def hand_out(desk: Desk, record: dict[str, Any], *, as_json: bool) -> None:
    """Prints a key's text, which is nowhere else."""
    # JSON alone on standard output when JSON was asked for.
    site = replace(desk.site, say=lambda _: None) if as_json else desk.site
    environment = _environment(site, str(record["key"]), direct=desk.direct)
    if as_json:
        desk.show_json({**record, "environment": environment})
        return
    site.say(f"key {record['id']} for {record['name']} (tenant {record['tenant']}), shown this once:\n")
    for name, value in environment.items():
        site.say(f"export {name}={value}")
    if record.get("state") == "rotating":
        site.say(f"\nthe old secret is accepted until {record['previous_until'][:16].replace('T', ' ')} UTC")


def report(desk: Desk, record: dict[str, Any], line: str, *, as_json: bool) -> None:
    if as_json:
        desk.show_json(record)
    else:
        desk.site.say(line)


def named(record: Mapping[str, Any]) -> str:
    return f"{record['id']} ({record['name']})"


def length(text: str) -> timedelta | None:
    found = _LENGTH.fullmatch(text.strip())
    return timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else None


def moment(text: str | None) -> str | None:
    """A local date or time, or a length from now, as the admin API takes it."""
    if text is None:
        return None
    try:
        if (ahead := length(text)) is not None:
            return (datetime.now(UTC) + ahead).isoformat()
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is no date such as 2027-01-31 and no time such as 90d", param_hint="--expires"
        ) from None


def day(text: str | None, option: str) -> str | None:
    if text is None:
        return None
    try:
        return str(datetime.strptime(text, "%Y-%m-%d").date())  # noqa: DTZ007 - a day, no moment
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no date such as 2026-12-31", param_hint=option) from None


def _environment(site: Site, key: str, *, direct: bool) -> dict[str, str]:
    """The environment to paste. The CA is exported where it can be; a key is not lost because it cannot."""
    from ops import ca
    from ops.keys import client_environment

    if direct:
        return {"OPENAI_API_KEY": key}
    variables = site.variables()
    certificate: Path | None = None
    if ca.is_internal(variables):
        try:
            certificate = ca.export(site)
        except OpsError as error:
            certificate = ca.root_path(site.root)
            if not certificate.exists():
                site.say(f"note: {error.message} Then run `make ca` to write {certificate}")
    return client_environment(key, variables, certificate)
