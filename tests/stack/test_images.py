"""The project's own images."""

import json
import shutil
import time
from typing import Any

from tests.capabilities import ROOT
from tests.stack.stack import Stack


def image(stack: Stack, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stack.run("docker", "image", "inspect", name).stdout)[0]
    return found


def test_the_gateways_image_is_small_and_not_roots(stack: Stack) -> None:
    gateway = image(stack, stack.config["services"]["gateway"]["image"])
    base = image(stack, python_image(stack))
    own = gateway["Size"] - base["Size"]
    print(
        f"\ngateway image {gateway['Size'] / 1e6:.0f} MB, {own / 1e6:.0f} MB of them on top of its base image"
    )
    assert own < 120e6
    assert gateway["Config"]["User"] == "10001:10001"


def python_image(stack: Stack) -> str:
    lines = (stack.home / "gateway" / "Dockerfile").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("FROM python:"))


def test_the_gateways_image_holds_no_installer_and_no_secret(stack: Stack) -> None:
    name = stack.config["services"]["gateway"]["image"]
    code = "import importlib.util as u; print([n for n in ('pip', 'ensurepip', 'uv') if u.find_spec(n)])"
    assert (
        stack.run("docker", "run", "--rm", "--network=none", name, "python", "-c", code).stdout.strip()
        == "[]"
    )
    listed = stack.run("docker", "run", "--rm", "--network=none", name, "find", "/app", "/data")
    assert ".env" not in listed.stdout
    assert "tests" not in {line.split("/")[2] for line in listed.stdout.splitlines() if line.count("/") > 1}


def test_the_images_are_built_without_a_network_from_wheels(stack: Stack) -> None:
    wheels = stack.home / "wheels"
    began = time.monotonic()
    path = f"{ROOT / 'build' / 'bootstrap' / 'bin'}:{ROOT / '.venv' / 'bin'}:{stack.environment['PATH']}"
    stack.run("env", f"PATH={path}", "scripts/wheels.sh", str(wheels), "gateway", "model")
    fetched = time.monotonic()
    for target in ("gateway", "standin", "model"):
        stack.run(
            "docker", "build", "--quiet", "--network=none", "--no-cache-filter", "install", "--build-context",
            f"wheels={wheels}", "--file", "gateway/Dockerfile", "--target", target, ".", timeout=300,
        )  # fmt: skip
    print(f"\nwheels in {fetched - began:.0f} s, images from them in {time.monotonic() - fetched:.0f} s")
    shutil.rmtree(wheels)
