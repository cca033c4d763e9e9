"""One lock, in step with pyproject.toml, from which everything is installed, hashes included."""

import re
import shutil
import subprocess
import tomllib

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


@pytest.mark.parametrize("selection", [("--no-default-groups",), ("--only-group", "model")])
def test_what_an_image_installs_does_not_depend_on_the_python_that_fetches_it(
    uv: str, selection: tuple[str, ...]
) -> None:
    """scripts/wheels.sh may run on another Python than the image's, and pip judges markers by its own."""
    requirements = exported(uv, *selection, "--no-hashes").splitlines()
    by_version = [line for line in requirements if "python" in line.partition(";")[2]]
    assert [line for line in by_version if "emscripten" not in line and "platform_python_impl" not in line
            and "implementation_name" not in line] == []  # fmt: skip


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
