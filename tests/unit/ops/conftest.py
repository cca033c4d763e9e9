"""A checkout in a temporary directory, with the project's own example and profiles, and a terminal on it."""

import io
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from ops import cli
from ops.setup import Choice, setup
from ops.site import Site
from tests.capabilities import ROOT
from tests.unit.ops.fake_commands import NO_COMMAND, FakeCommands

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


class Said(list[str]):
    """Collects what a command says."""

    def __call__(self, line: str) -> None:
        self.append(line)

    @property
    def text(self) -> str:
        return "\n".join(self)


@dataclass
class Checkout:
    """A site on scripted commands; `said` is what was printed."""

    site: Site
    commands: FakeCommands
    said: Said

    @property
    def root(self) -> Path:
        return self.site.root


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root = tmp_path / "gatehouse"
    (root / "vllm" / "profiles").mkdir(parents=True)
    for profile in (ROOT / "vllm" / "profiles").glob("*.yaml"):
        shutil.copy(profile, root / "vllm" / "profiles")
    (root / "gateway" / "config").mkdir(parents=True)
    shutil.copy(ROOT / "gateway" / "config" / "plans.yaml", root / "gateway" / "config")
    shutil.copy(ROOT / ".env.example", root)
    commands, said = FakeCommands(), Said()
    return Checkout(Site(root, commands, {}, said), commands, said)


class Terminal:
    """Runs command lines on a checkout and keeps both streams; `width` in columns."""

    def __init__(self, checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
        self.checkout, self._capsys = checkout, capsys
        self.width = 200

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, standard output and standard error."""
        out, errors = io.StringIO(), io.StringIO()
        console = Console(file=out, width=self.width)
        site = Site(self.checkout.root, self.checkout.commands, {}, cli.plain(console))
        app = cli.build(site, console)
        code = cli.run(app, Console(file=errors, width=200), arguments)
        captured = self._capsys.readouterr()
        return code, out.getvalue() + captured.out, errors.getvalue() + captured.err


@pytest.fixture
def terminal(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """In a checkout that is set up; Caddy's authority can be had."""
    checkout.commands.on("nvidia-smi", NO_COMMAND)
    setup(checkout.site, Choice())
    checkout.commands.on_json("docker info", {"ServerVersion": "28.5.2"})
    checkout.commands.on("docker compose version", out="2.40.3\n")
    checkout.commands.on("docker compose exec -T caddy cat", out=CERTIFICATE)
    return Terminal(checkout, capsys)
