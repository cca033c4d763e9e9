"""scripts/env.sh: says in one line what is missing, repairs what an interrupt left, costs nothing later."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.capabilities import ROOT

FILES = ("uv.lock", "pyproject.toml", "scripts/bootstrap.txt", "scripts/env.sh")
GROUP = "bench"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what env.sh reads, beside the uv that is already there: nothing is fetched twice."""
    for name in FILES:
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, target)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "bootstrap").symlink_to(ROOT / "build" / "bootstrap")
    return tmp_path


def env_sh(project: Path, *groups: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", str(project / "scripts" / "env.sh"), *groups],
        env=os.environ | changes,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def stub(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.unlink(missing_ok=True)  # a link to the machine's own program must not be written through
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with the basic tools and no Python."""
    path = tmp_path / "bin"
    path.mkdir()
    for tool in ("cat", "sha256sum", "cut", "mkdir", "dirname", "basename", "flock", "rm", "id"):
        found = shutil.which(tool)
        assert found
        (path / tool).symlink_to(found)
    return path


def test_without_a_new_enough_python_it_says_how_to_get_one(project: Path, bare_path: Path) -> None:
    stub(bare_path, "python3", "exit 1")  # what an old one answers
    done = env_sh(project, GROUP, PATH=str(bare_path))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("gatehouse: needs Python 3.11 or newer; ")
    assert line.endswith("sudo apt-get install python3 python3-venv")


def test_without_the_venv_module_it_says_how_to_get_it(project: Path, bare_path: Path) -> None:
    (project / "build" / "bootstrap").unlink()
    stub(bare_path, "python3", 'case "$2" in *ensurepip*) exit 1 ;; esac')
    stub(bare_path, "id", "echo 1000")
    done = env_sh(project, GROUP, PATH=str(bare_path))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "gatehouse: Python's venv module is missing: run 'sudo apt-get install python3-venv', then this again"
    ]


def test_as_root_it_installs_the_venv_module_and_says_so(project: Path, bare_path: Path) -> None:
    (project / "build" / "bootstrap").unlink()
    stub(bare_path, "python3", 'case "$2" in *ensurepip*) exit 1 ;; esac')
    stub(bare_path, "id", "echo 0")
    stub(bare_path, "apt-get", f'echo "$@" >>{project}/apt-was-asked; [ "$1" = update ]')
    done = env_sh(project, GROUP, PATH=str(bare_path))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "gatehouse: installing the system package python3-venv (apt-get)",
        f"gatehouse: apt-get could not install python3-venv: see {project}/build/apt.log",
    ]
    assert (project / "apt-was-asked").read_text().splitlines()[1].endswith("python3-venv")


def test_an_interrupted_install_is_repaired_and_a_finished_one_costs_nothing(project: Path) -> None:
    assert env_sh(project, GROUP).returncode == 0
    python = project / ".venv" / "bin" / "python"
    assert subprocess.run([python, "-c", "import pydantic"], check=False).returncode == 0

    started = time.monotonic()
    assert env_sh(project, GROUP).stderr == ""
    assert time.monotonic() - started < 0.5

    # What a run killed in the middle leaves: the mark, and a package without half of its files.
    (package,) = project.glob(".venv/lib/python3.*/site-packages/pydantic")
    shutil.rmtree(package)
    (project / ".venv" / ".incomplete").touch()
    assert env_sh(project, GROUP).returncode == 0
    assert subprocess.run([python, "-c", "import pydantic"], check=False).returncode == 0


@pytest.fixture
def quick(project: Path) -> Path:
    """The project with a uv that installs nothing: for what env.sh decides by itself."""
    bootstrap = project / "build" / "bootstrap"
    installed = (bootstrap / ".installed").read_text()
    bootstrap.unlink()
    (bootstrap / "bin").mkdir(parents=True)
    (bootstrap / ".installed").write_text(installed)
    make_venv = f"mkdir -p .venv/bin && ln -s {sys.executable} .venv/bin/python"
    stub(bootstrap / "bin", "uv", f'case "$1" in venv) {make_venv} ;; sync) sleep 0.3 ;; esac')
    return project


def test_a_changed_lock_installs_again(quick: Path) -> None:
    assert env_sh(quick, GROUP).returncode == 0
    assert env_sh(quick, GROUP).stderr == ""
    with (quick / "uv.lock").open("a") as lock:
        lock.write("# changed\n")
    assert "installing the locked dependencies" in env_sh(quick, GROUP).stderr


def test_two_runs_at_once_do_not_get_in_each_others_way(quick: Path) -> None:
    command = ["/bin/bash", str(quick / "scripts" / "env.sh"), GROUP]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [run.communicate(timeout=50)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    assert sum("installing" in each for each in said) == 1
