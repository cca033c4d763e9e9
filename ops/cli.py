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
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ops import keys_cli
from ops.commands import HostCommands
from ops.errors import OpsError
from ops.site import Site

ROOT = Path(__file__).resolve().parent.parent
FAILED = 1
INTERRUPTED = 130

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def build(site: Site, console: Console) -> typer.Typer:
    """The command line of one site."""
    app = typer.Typer(help=_HELP, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    _add_setup(app, site)
    _add_stack(app, site, console)
    _add_model(app, site)
    app.add_typer(keys_cli.build(site, console), name="keys")
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


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


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
