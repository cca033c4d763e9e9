"""The names an operator types. This module parses and prints; the work is in the modules it calls.

Exit codes of every command: 0 done, 1 not done (one line says why and what to do), 2 wrong usage,
130 interrupted. `status` also exits with 1 while something that should run does not.
"""
# Modules are imported where they are used, so that no command waits for the libraries of another. A boolean
# default is how typer declares a flag.
# ruff: noqa: PLC0415, FBT002

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ops.commands import HostCommands
from ops.errors import OpsError
from ops.site import Site

ROOT = Path(__file__).resolve().parent.parent
FAILED = 1
INTERRUPTED = 130

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
AdminUrl = Annotated[str | None, typer.Option("--admin-url", help="A gateway outside Docker: its admin API.")]
AdminTokenFile = Annotated[Path | None, typer.Option(help="The file with its admin token.")]


def build(site: Site, console: Console) -> typer.Typer:
    """The command line of one site."""
    app = typer.Typer(help=_HELP, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    _add_setup(app, site)
    _add_stack(app, site, console)
    _add_model(app, site)
    app.add_typer(_keys(site, console), name="keys")
    _add_ca(app, site, console)
    _add_demo(app)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command on this checkout and returns its exit code."""
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    site = Site(ROOT, HostCommands(ROOT, os.environ), os.environ, plain(console))
    return run(build(site, console), errors, arguments)


def run(app: typer.Typer, errors: Console, arguments: Sequence[str] | None = None) -> int:
    """Runs the command in `arguments`; expected failures become one line, here and nowhere else."""
    try:
        app(args=list(arguments) if arguments is not None else None, prog_name="ops")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
        if code == INTERRUPTED:
            errors.print("interrupted; run it again to go on")
        return code
    except OpsError as error:
        problem, fix = error.message, error.fix
    except OSError as error:
        problem, fix = f"{error}.", "Check the file and its permissions."
    errors.print(f"[bold red]error:[/] {_escaped(problem)} {_escaped(fix)}", soft_wrap=True)
    return FAILED


def plain(console: Console) -> Callable[[str], None]:
    """Prints a line as it is: no markup, no wrapping, since lines are copied and piped."""
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)


_HELP = "Set up and run Gatehouse on this host. Every command can be repeated, and interrupted with Ctrl-C."


def _add_setup(app: typer.Typer, site: Site) -> None:
    @app.command()
    def setup(
        profile: Annotated[
            str | None, typer.Option(help="A file in vllm/profiles, instead of a guess.")
        ] = None,
        standin: Annotated[
            bool | None,
            typer.Option("--standin/--gpu", help="The stand-in engine, or vLLM; default: by the GPU."),
        ] = None,
    ) -> None:
        """Write .env and strong secrets; never overwrites."""
        from ops.setup import Choice
        from ops.setup import setup as run_setup

        run_setup(site, Choice(profile, standin))


def _add_stack(app: typer.Typer, site: Site, console: Console) -> None:
    @app.command()
    def up(
        wait: Annotated[bool, typer.Option(help="Show the engine loading until it is ready.")] = True,
        build: Annotated[bool, typer.Option("--build", help="Build our images again.")] = False,
        limit: Annotated[float | None, typer.Option("--wait-limit", help="Seconds to wait at most.")] = None,
    ) -> None:
        """Start the stack and show the engine loading until it is ready."""
        from ops.up import Pace
        from ops.up import up as run_up

        run_up(site, wait=wait, build=build, pace=Pace(limit=limit))

    @app.command()
    def down() -> None:
        """Stop the stack; data and models stay."""
        from ops.stack import down as run_down

        run_down(site)

    @app.command()
    def logs(
        services: Annotated[list[str] | None, typer.Argument(help="Services; default: all.")] = None,
        follow: Annotated[bool, typer.Option(help="Go on with new lines until Ctrl-C.")] = True,
        tail: Annotated[int, typer.Option(min=0, help="Last lines of each service.")] = 100,
    ) -> None:
        """Show the stack's logs."""
        from ops.stack import logs as run_logs

        run_logs(site, services or [], follow=follow, tail=tail)

    @app.command()
    def status(as_json: Json = False) -> None:
        """Show what runs, and how it is."""
        from ops.stack import exit_code
        from ops.stack import status as find_status

        found = find_status(site)
        if as_json:
            _print_json(found)
        else:
            _print_status(console, found)
        raise typer.Exit(exit_code(found))


def _add_model(app: typer.Typer, site: Site) -> None:
    @app.command()
    def model(
        verify: Annotated[
            bool, typer.Option("--verify", help="Compare every hash of a model that is there.")
        ] = False,
        host_dir: Annotated[
            Path | None, typer.Option(help="Fetch into this directory, without Docker.")
        ] = None,
    ) -> None:
        """Fetch the model that .env selects, once, resumable and verified."""
        from ops.modelfiles import fetch_in_container, fetch_on_host

        if host_dir is None:
            fetch_in_container(site, verify=verify)
        else:
            fetch_on_host(site, host_dir, verify=verify)


def _keys(site: Site, console: Console) -> typer.Typer:
    keys = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys.")
    _add_create(keys, site)

    @keys.command("list")
    def list_(
        as_json: Json = False, admin_url: AdminUrl = None, admin_token_file: AdminTokenFile = None
    ) -> None:
        """List the keys, without their secrets."""
        from ops.keys import list_keys

        records = list_keys(_transport(site, admin_url, admin_token_file))
        if as_json:
            _print_json({"keys": records})
        else:
            _print_keys(console, records)

    @keys.command()
    def revoke(
        key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, from the list.")],
        as_json: Json = False,
        admin_url: AdminUrl = None,
        admin_token_file: AdminTokenFile = None,
    ) -> None:
        """Revoke a key, for good."""
        from ops.keys import revoke as revoke_key

        record = revoke_key(_transport(site, admin_url, admin_token_file), key_id)
        if as_json:
            _print_json(record)
        else:
            site.say(f"revoked {record['id']} ({record['name']})")

    return keys


def _add_create(keys: typer.Typer, site: Site) -> None:
    @keys.command()
    def create(
        name: Annotated[str, typer.Option(help="Who or what the key is for.")],
        tenant: Annotated[str, typer.Option(help="The team that its use counts for.")] = "default",
        requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Default: .env's.")] = None,
        expires: Annotated[datetime | None, typer.Option(help="In local time; default: never.")] = None,
        as_json: Json = False,
        admin_url: AdminUrl = None,
        admin_token_file: AdminTokenFile = None,
    ) -> None:
        """Create a key and print it, once, with an environment to paste."""
        from ops.keys import create as create_key

        request = {
            "name": name,
            "tenant": tenant,
            "requests_per_minute": requests_per_minute,
            "expires_at": expires.astimezone().isoformat() if expires else None,
        }
        record = create_key(_transport(site, admin_url, admin_token_file), request)
        # JSON alone on standard output when JSON was asked for.
        environment = _environment(replace(site, say=lambda _: None) if as_json else site, record, admin_url)
        if as_json:
            _print_json({**record, "environment": environment})
        else:
            _print_key(site, record, environment)


def _add_ca(app: typer.Typer, site: Site, console: Console) -> None:
    @app.command()
    def ca(as_json: Json = False) -> None:
        """Write the certificate authority that clients of this host must trust."""
        from ops.ca import export, instructions

        path = export(site)
        if as_json:
            _print_json({"path": str(path)})
            return
        site.say(f"wrote {path}")
        for line in instructions(path):
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _add_demo(app: typer.Typer) -> None:
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

    @app.command(context_settings=settings)
    def demo(context: typer.Context) -> None:
        """Run the gateway here, without Docker or a GPU, in front of a stand-in engine."""
        from ops.demo import demo as run_demo

        inner = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        inner.command()(run_demo)
        code = inner(args=context.args, prog_name="ops demo", standalone_mode=False)
        raise typer.Exit(code if isinstance(code, int) else 0)


def _transport(site: Site, url: str | None, token_file: Path | None) -> Any:
    from ops.docker import Docker
    from ops.keys import ExecTransport, HttpTransport

    if (url is None) != (token_file is None):
        raise OpsError("--admin-url and --admin-token-file belong together.", "Give both, or neither.")
    if url is not None and token_file is not None:
        return HttpTransport(url, token_file)
    return ExecTransport(Docker(site.commands))


def _environment(site: Site, record: dict[str, Any], admin_url: str | None) -> dict[str, str]:
    """The environment to paste. The CA is exported where it can be; a key is not lost because it cannot."""
    from ops import ca
    from ops.keys import client_environment

    if admin_url is not None:
        return {"OPENAI_API_KEY": str(record["key"])}
    variables = site.variables()
    certificate: Path | None = None
    if ca.is_internal(variables):
        try:
            certificate = ca.export(site)
        except OpsError as error:
            certificate = ca.root_path(site.root)
            if not certificate.exists():
                site.say(f"note: {error.message} Then run `make ca` to write {certificate}")
    return client_environment(str(record["key"]), variables, certificate)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def _print_key(site: Site, record: dict[str, Any], environment: dict[str, str]) -> None:
    site.say(f"key {record['id']} for {record['name']} (tenant {record['tenant']}), shown this once:\n")
    for name, value in environment.items():
        site.say(f"export {name}={value}")


def _print_keys(console: Console, records: list[dict[str, Any]]) -> None:
    from rich.table import Table

    if not records:
        console.print('no keys yet: make keys ARGS="create --name alice"', markup=False)
        return
    table = Table("id", "name", "tenant", "requests/min", "created (UTC)", "expires", "revoked", box=None)
    for record in records:
        limit = record.get("requests_per_minute")
        # To the minute: whole moments, which --json has, do not fit a terminal.
        moments = [str(record.get(f"{what}_at") or "-") for what in ("created", "expires", "revoked")]
        times = [_escaped(moment[:16].replace("T", " ")) for moment in moments]
        cells = (record["id"], record["name"], record["tenant"], "default" if limit is None else str(limit))
        table.add_row(*(_escaped(str(cell)) for cell in cells), *times)
    console.print(table)


def _print_status(console: Console, found: dict[str, Any]) -> None:
    from rich.table import Table

    if not found["services"]:
        console.print("nothing runs: make up", markup=False)
        return
    table = Table("service", "state", "health", "image", "ports", box=None)
    for service in found["services"]:
        colour = "green" if service["well"] else "red"
        cells = [_escaped(service[name]) for name in ("health", "image", "ports")]
        table.add_row(service["service"], f"[{colour}]{service['state']}[/]", *cells)
    console.print(table)
    readiness = found["gateway"] or {"status": "no answer"}
    reasons = ", ".join(str(reason) for reason in readiness.get("reasons") or ())
    console.print(f"gateway: {readiness['status']}{f' ({reasons})' if reasons else ''}", markup=False)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
