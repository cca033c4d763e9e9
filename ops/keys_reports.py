"""The `keys` commands that tell: nothing is changed here, but that plans may be read again."""
# As in ops.cli: modules are imported where they are used, and a flag's default is a boolean.
# ruff: noqa: PLC0415, FBT002

from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from ops.keys_desk import Desk, Json, KeyId, day

KeyState = Literal["active", "rotating", "disabled", "expired", "revoked"]
By = Literal["day", "key", "tenant", "model"]


def list_(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    state: Annotated[KeyState | None, typer.Option(help="Only those in this state.")] = None,
    plan: Annotated[str | None, typer.Option(help="Only those on this plan.")] = None,
    as_json: Json = False,
) -> None:
    """List the keys, without their secrets."""
    from ops import keys_tables

    desk: Desk = context.obj
    records = desk.admin.keys(tenant=tenant, state=state, plan=plan)
    if as_json:
        desk.show_json({"keys": records})
    elif records:
        desk.show(keys_tables.keys(records, datetime.now(UTC)))
    elif tenant or state or plan:
        desk.site.say("no such keys")
    else:
        desk.site.say('no keys yet: make keys ARGS="create --name alice"')


def show(context: typer.Context, key_id: KeyId, as_json: Json = False) -> None:
    """Show one key: its plan, what it may do, and what it uses."""
    from ops import keys_tables

    desk: Desk = context.obj
    record = desk.admin.show(key_id)
    readings = desk.admin.limits(key_id)["limits"] if record.get("effective") else []
    if as_json:
        desk.show_json({**record, "limits": readings})
        return
    desk.show(keys_tables.key(record, datetime.now(UTC)))
    if readings:
        desk.site.say("")
        desk.show(keys_tables.limits(readings))


def usage(
    context: typer.Context,
    first: Annotated[str | None, typer.Option("--from", metavar="DATE", help="Default: the month's.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DATE", help="Default: today.")] = None,
    by: Annotated[By, typer.Option(help="What to sum by.")] = "day",
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    key: Annotated[str | None, typer.Option(metavar="ID", help="Only this key's.")] = None,
    as_json: Json = False,
) -> None:
    """Show requests and tokens, summed by day, key, tenant or model."""
    from ops import keys_tables

    desk: Desk = context.obj
    report = desk.admin.usage(
        from_=day(first, "--from"), to=day(last, "--to"), by=by, tenant=tenant, key_id=key
    )
    if as_json:
        desk.show_json(report)
    elif report["rows"]:
        desk.show(keys_tables.usage(report))
        desk.site.say(f"\n{report['from']} to {report['to']}, days of {report['timezone']}")
    else:
        desk.site.say(f"no usage from {report['from']} to {report['to']}")


def limits(context: typer.Context, key_id: KeyId, as_json: Json = False) -> None:
    """Show a key's limits, what of them is used, and when it is free again."""
    from ops import keys_tables

    desk: Desk = context.obj
    found = desk.admin.limits(key_id)
    if as_json:
        desk.show_json(found)
    elif found["limits"]:
        desk.show(keys_tables.limits(found["limits"]))
    else:
        desk.site.say(f"the plan {found['plan']} has no limits")


def explain(
    context: typer.Context,
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="From x-request-id or the log.")],
    as_json: Json = False,
) -> None:
    """Say why a request was refused, and what would let it pass."""
    from ops import keys_tables

    desk: Desk = context.obj
    found = desk.admin.explain(request_id)
    if as_json:
        desk.show_json(found)
    else:
        keys_tables.print_explanation(desk.console, found)


def audit(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The last ones.")] = 50,
    before: Annotated[int | None, typer.Option(metavar="ENTRY", help="Older than this entry's id.")] = None,
    key: Annotated[str | None, typer.Option(metavar="ID", help="Only of this key.")] = None,
    as_json: Json = False,
) -> None:
    """Show who changed what, newest first."""
    from ops import keys_tables

    desk: Desk = context.obj
    page = desk.admin.audit(limit=str(limit), before=None if before is None else str(before), key_id=key)
    if as_json:
        desk.show_json(page)
        return
    desk.show(keys_tables.audit(page["entries"]))
    if page.get("next"):
        desk.site.say(f"\nolder ones: --before {page['next']}")


def plans(
    context: typer.Context,
    reload: Annotated[bool, typer.Option("--reload", help="Read the file first.")] = False,
    as_json: Json = False,
) -> None:
    """Show the plans in force."""
    from ops import keys_tables

    desk: Desk = context.obj
    found = desk.admin.reload_plans() if reload else desk.admin.plans()
    if as_json:
        desk.show_json(found)
        return
    desk.show(keys_tables.plans(found))
    if found.get("problem"):
        desk.site.say(f"\nthe file as it is now is refused, these are older: {found['problem']}")
