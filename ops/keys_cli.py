"""`ops keys …`: what is typed and printed; the work is in `ops.keys`."""
# As in ops.cli: modules are imported where they are used, and a flag's default is a boolean.
# ruff: noqa: PLC0415, FBT002

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from ops import keys_desk, keys_reports
from ops.errors import OpsError
from ops.keys_desk import Desk, Json, KeyId, hand_out, length, moment, named, report
from ops.site import Site

Name = Annotated[str, typer.Option(help="Who or what the key is for.")]
Tenant = Annotated[str, typer.Option(help="The team that its use counts for.")]
Plan = Annotated[str | None, typer.Option(help="A plan of plans.yaml; default: its default plan.")]
Scopes = Annotated[
    str | None, typer.Option(help="Some of generate,embed,tokenize,rank; default: all of them.")
]
Models = Annotated[str | None, typer.Option(help="Names that clients use: a,b; default: the plan's.")]
Expires = Annotated[
    str | None, typer.Option(metavar="DATE|TIME", help="2027-01-31, in local time, or 90d from now.")
]
Amount = Annotated[int | None, typer.Option(min=1, help="Default: the plan's.")]
Priority = Annotated[int | None, typer.Option(min=0, max=9, help="Default: the plan's.")]
AdminUrl = Annotated[str | None, typer.Option("--admin-url", help="A gateway outside Docker: its admin API.")]
AdminTokenFile = Annotated[Path | None, typer.Option(help="The file with its admin token.")]

OverCap = Annotated[
    Literal["clamp", "refuse"] | None, typer.Option(help="More output than the cap: lowered, or refused.")
]


def build(site: Site, console: Console) -> typer.Typer:
    """The `keys` commands of one site."""
    app = typer.Typer(no_args_is_help=True, help="Keys: who may do what, and how much.")

    @app.callback()
    def connect(
        context: typer.Context, admin_url: AdminUrl = None, admin_token_file: AdminTokenFile = None
    ) -> None:
        context.obj = keys_desk.connect(site, console, admin_url, admin_token_file)

    app.command()(create)
    app.command("list")(keys_reports.list_)
    app.command()(keys_reports.show)
    app.command()(change)
    app.command()(rotate)
    app.command()(disable)
    app.command()(enable)
    app.command()(revoke)
    app.command("import")(import_)
    app.command()(export)
    app.command()(keys_reports.usage)
    app.command()(keys_reports.limits)
    app.command()(keys_reports.explain)
    app.command()(keys_reports.audit)
    app.command()(keys_reports.plans)
    return app


def create(
    context: typer.Context,
    *,
    name: Name,
    tenant: Tenant = "default",
    plan: Plan = None,
    scopes: Scopes = None,
    models: Models = None,
    expires: Expires = None,
    requests_per_minute: Amount = None,
    tokens_per_minute: Amount = None,
    parallel_requests: Amount = None,
    tokens_per_day: Amount = None,
    tokens_per_month: Amount = None,
    output_cap: Amount = None,
    output_default: Amount = None,
    over_cap: OverCap = None,
    priority: Priority = None,
    as_json: Json = False,
) -> None:
    """Create a key and print it, once, with an environment to paste."""
    desk: Desk = context.obj
    request = {
        "name": name,
        "tenant": tenant,
        "plan": plan,
        "scopes": _words(scopes),
        "models": _words(models),
        "expires_at": moment(expires),
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "parallel_requests": parallel_requests,
        "tokens_per_day": tokens_per_day,
        "tokens_per_month": tokens_per_month,
        "output_cap": output_cap,
        "output_default": output_default,
        "over_cap": over_cap,
        "priority": priority,
    }
    given = {name: value for name, value in request.items() if value is not None}
    hand_out(desk, desk.admin.create(given), as_json=as_json)


def change(
    context: typer.Context,
    key_id: KeyId,
    *,
    name: Annotated[str | None, typer.Option(help="Who or what the key is for.")] = None,
    tenant: Annotated[str | None, typer.Option(help="The team that its use counts for from now on.")] = None,
    plan: Plan = None,
    scopes: Scopes = None,
    models: Models = None,
    expires: Expires = None,
    requests_per_minute: Amount = None,
    tokens_per_minute: Amount = None,
    parallel_requests: Amount = None,
    tokens_per_day: Amount = None,
    tokens_per_month: Amount = None,
    output_cap: Amount = None,
    output_default: Amount = None,
    over_cap: OverCap = None,
    priority: Priority = None,
    clear: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Back to the default: --clear plan. Repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change what is given; the rest stays."""
    desk: Desk = context.obj
    values: dict[str, Any] = {
        "name": name,
        "tenant": tenant,
        "plan": plan,
        "scopes": _words(scopes),
        "models": _words(models),
        "expires_at": moment(expires),
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "parallel_requests": parallel_requests,
        "tokens_per_day": tokens_per_day,
        "tokens_per_month": tokens_per_month,
        "output_cap": output_cap,
        "output_default": output_default,
        "over_cap": over_cap,
        "priority": priority,
    }
    changes = {name: value for name, value in values.items() if value is not None}
    changes |= _cleared(clear or [], values)
    if not changes:
        raise typer.BadParameter("say what to change, such as --plan")
    record = desk.admin.change(key_id, changes)
    said = ", ".join(f"{name}={record.get(name)}" for name in changes)
    report(desk, record, f"changed {named(record)}: {said}", as_json=as_json)


def rotate(
    context: typer.Context,
    key_id: KeyId,
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="How long the old secret is good too: 24h, 30m, 7d.")
    ] = "0s",
    as_json: Json = False,
) -> None:
    """Give a key a new secret and print it, once; the id stays."""
    desk: Desk = context.obj
    wanted = length(overlap)
    if wanted is None:
        raise typer.BadParameter(f"{overlap!r} is no time such as 24h, 30m or 7d", param_hint="--overlap")
    hand_out(desk, desk.admin.rotate(key_id, wanted.total_seconds()), as_json=as_json)


def disable(context: typer.Context, key_id: KeyId, as_json: Json = False) -> None:
    """Refuse a key until it is enabled again."""
    desk: Desk = context.obj
    record = desk.admin.disable(key_id)
    report(desk, record, f"disabled {named(record)}", as_json=as_json)


def enable(context: typer.Context, key_id: KeyId, as_json: Json = False) -> None:
    """Take a disabled key again."""
    desk: Desk = context.obj
    record = desk.admin.enable(key_id)
    report(desk, record, f"enabled {named(record)}", as_json=as_json)


def revoke(context: typer.Context, key_id: KeyId, as_json: Json = False) -> None:
    """Revoke a key, for good."""
    desk: Desk = context.obj
    record = desk.admin.revoke(key_id)
    report(desk, record, f"revoked {named(record)}", as_json=as_json)


def import_(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV with a head, or JSON lines.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the file.")] = False,
    as_json: Json = False,
) -> None:
    """Create many keys, or take over exported ones: all or none. New keys are printed, once."""
    from ops import keys_file
    from ops.keys import Refused

    desk: Desk = context.obj
    found = keys_file.read(file)
    try:
        result = desk.admin.load(found.keys, dry_run=dry_run)
    except Refused as refused:
        reason = found.in_its_words(refused.reason).removesuffix("; nothing was imported")
        raise OpsError(f"{reason}. Nothing was imported.", refused.fix) from None
    if as_json:
        desk.show_json(result)
        return
    new = [record for record in result["keys"] if record.get("key")]
    if new:
        lines = csv.writer(sys.stdout, lineterminator="\n")
        lines.writerow(("id", "name", "tenant", "key"))
        lines.writerows((record["id"], record["name"], record["tenant"], record["key"]) for record in new)
        desk.note(f"{len(new)} new keys, shown this once")
    if dry_run:
        desk.note(f"{file}: {result['count']} keys could be imported; nothing was done")
    elif taken := result["count"] - len(new):
        desk.note(f"took over {taken} keys")


def export(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Default: standard output.")] = None,
) -> None:
    """Write all keys as JSON lines, for `import` elsewhere. No secrets: digests only."""
    desk: Desk = context.obj
    records = desk.admin.export()
    text = "".join(f"{json.dumps(_exported(record))}\n" for record in records)
    if out is None:
        sys.stdout.write(text)
    else:
        _write_new(out, text)
    desk.note(
        f"{len(records)} keys, without secrets: digests, of use only with the same secrets/key_pepper, which "
        "has to move with them"
    )


def _exported(record: Mapping[str, Any]) -> dict[str, Any]:
    """What is set, beginning with what a reader looks for."""
    first = {name: record[name] for name in ("id", "name", "tenant")}
    return first | {name: value for name, value in record.items() if value is not None}


def _words(text: str | None) -> list[str] | None:
    return None if text is None else text.replace(",", " ").split()


def _cleared(options: list[str], known: Mapping[str, Any]) -> dict[str, Any]:
    names = {option.removeprefix("--").replace("-", "_") for option in options}
    cleared: dict[str, Any] = {"expires_at" if name == "expires" else name: None for name in names}
    allowed = set(known) - {"name", "tenant"}
    for name in sorted(set(cleared) - allowed):
        have = ", ".join(sorted(one.replace("_", "-").removesuffix("-at") for one in allowed))
        raise typer.BadParameter(f"{name!r} has no default; there are {have}", param_hint="--clear")
    return cleared


def _write_new(path: Path, text: str) -> None:
    """Writes a file that only its owner reads, and never over another. Raises OpsError."""
    try:
        path.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        raise OpsError(f"{path} exists.", "Give another name, or remove it.") from None
    path.write_text(text, encoding="utf-8")
