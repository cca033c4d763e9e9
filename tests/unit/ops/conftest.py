"""A checkout in a temporary directory, with the project's own example and profiles."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.site import Site
from tests.capabilities import ROOT
from tests.unit.ops.fake_commands import FakeCommands


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
    shutil.copy(ROOT / ".env.example", root)
    commands, said = FakeCommands(), Said()
    return Checkout(Site(root, commands, {}, said), commands, said)
