"""One lock, in step with pyproject.toml, from which everything is installed, hashes included."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.capabilities import ROOT


@pytest.fixture(scope="session")
def uv() -> str:
    found = ROOT / "build" / "bootstrap" / "bin" / "uv"
    if found.exists():
        return str(found)
    on_path = shutil.which("uv")
    assert on_path, "no uv: run `make test`, which installs it"
    return on_path


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def exported(uv: str, *selection: str) -> str:
    return run(
        uv, "export", "--frozen", "--offline", "--no-emit-project", "--no-annotate", "--no-header", *selection
    )


def test_the_lock_is_in_step_with_pyproject(uv: str) -> None:
    run(uv, "lock", "--check", "--offline")


@pytest.mark.parametrize(
    "selection", [("--no-default-groups",), ("--only-group", "model"), ("--group", "dev")]
)
def test_every_pin_has_a_hash(uv: str, selection: tuple[str, ...]) -> None:
    requirements = exported(uv, *selection).replace("\\\n", " ").splitlines()
    assert len(requirements) > 10
    assert [line for line in requirements if "==" not in line or "--hash=sha256:" not in line] == []


@pytest.mark.parametrize("group", ["gateway", "model"])
def test_what_an_image_installs_does_not_depend_on_the_python_that_fetches_it(
    uv: str, group: str, tmp_path: Path
) -> None:
    """scripts/wheels.sh may run on another Python than the image's, and pip judges markers by its own."""
    beside = Path(uv).with_name("python3")
    python = str(beside) if beside.exists() else shutil.which("python3")
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "uv").symlink_to(uv)
    # In place of pip, which would fetch: nothing.
    (commands / "python3").write_text(f'#!/bin/sh\n[ "$1" = -m ] || exec {python} "$@"\n')
    (commands / "python3").chmod(0o755)
    path = f"{commands}:{os.environ['PATH']}"
    run("env", f"PATH={path}", "UV_OFFLINE=1", "scripts/wheels.sh", str(tmp_path), group)
    requirements = (tmp_path / f"{group}.txt").read_text().splitlines()
    assert len(requirements) > 10
    assert [line for line in requirements if ";" in line or "--hash=sha256:" not in line] == []
    names = [line.partition("==")[0] for line in requirements]
    assert sorted(set(names)) == sorted(names)


def test_wheels_are_fetched_for_the_images_python() -> None:
    base = re.search(
        r"^FROM python:(\d+\.\d+)\.\d+-slim-trixie AS base$",
        (ROOT / "gateway/Dockerfile").read_text(),
        re.MULTILINE,
    )
    fetched = re.search(r"^python_version=(\S+)", (ROOT / "scripts/wheels.sh").read_text(), re.MULTILINE)
    assert base
    assert fetched
    assert base[1] == fetched[1]


def test_the_bootstrap_is_one_pin_with_a_hash_for_each_processor() -> None:
    text = (ROOT / "scripts/bootstrap.txt").read_text()
    assert len(re.findall(r"^\S+==\S+", text, re.MULTILINE)) == 1
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) == 2


def test_the_gateways_dependencies_are_none_of_the_tools() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    tools = {
        re.split(r"[\[<>=]", str(each))[0] for group in ("lint", "test", "ops") for each in groups[group]
    }
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert tools & {re.split(r"[\[<>=]", each)[0] for each in dependencies} == set()
