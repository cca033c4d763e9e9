"""Each profile, given to the real entrypoint and to the real parser of each vLLM that is supported."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engine.conftest import VERSIONS
from tests.fakes.gateway_process import ROOT

PROFILES = sorted((ROOT / "vllm" / "profiles").glob("*.yaml"))
Offers = Callable[[str], Mapping[str, str]]

pytestmark = pytest.mark.parametrize(
    "version", [pytest.param(one, marks=pytest.mark.requires(f"vllm-{one}")) for one in VERSIONS]
)


@pytest.fixture
def run(
    tmp_path: Path, capability: Offers, version: str
) -> Callable[[Path], subprocess.CompletedProcess[str]]:
    """Runs the entrypoint; in the place of `vllm` stands that version's own parser of its arguments."""
    offers = capability(f"vllm-{version}")
    python = Path(offers["VENV"]) / "bin" / "python"
    commands = tmp_path / "bin"
    commands.mkdir()
    parser = ROOT / "tests" / "engine" / "vllm" / "parse_options.py"
    for name, command in (("vllm", f'{python} {parser} "$@"'), ("python3", f'{python} "$@"')):
        (commands / name).write_text(f"#!/bin/sh\nexec {command}\n")
        (commands / name).chmod(0o755)
    (tmp_path / "key").write_text("k" * 40)

    def entrypoint(profile: Path) -> subprocess.CompletedProcess[str]:
        # The same profile, but the model is where this machine has one.
        lines = profile.read_text().splitlines()
        placed = [f"model: {offers['MODEL']}" if line.startswith("model:") else line for line in lines]
        (tmp_path / "profile.yaml").write_text("\n".join(placed) + "\n")
        environment = {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "GATEHOUSE_ENGINE_PROFILE": str(tmp_path / "profile.yaml"),
            "GATEHOUSE_ENGINE_KEY_FILE": str(tmp_path / "key"),
            "GATEHOUSE_FAILURE_PAUSE": "0",
        }
        return subprocess.run(
            ["sh", ROOT / "vllm" / "entrypoint.sh"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return entrypoint


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_every_key_of_a_profile_is_an_option_and_arrives(
    run: Callable[[Path], subprocess.CompletedProcess[str]], version: str, profile: Path
) -> None:
    done = run(profile)
    assert done.returncode == 0, done.stderr
    parsed = json.loads(done.stdout.splitlines()[-1])
    options: dict[str, Any] = parsed["options"]
    for name, value in yaml.safe_load(profile.read_text()).items():
        arrived = options["model_tag" if name == "model" else name.replace("-", "_")]
        if name == "served-model-name":
            assert arrived == ([value] if isinstance(value, str) else value)
        elif name != "model":
            assert arrived == value, name
    assert parsed["key_is_set"]
    assert (options["host"], options["port"]) == ("0.0.0.0", 8000)
    assert options["api_key"] is None, "the key is never an argument"
    assert options["quantization"] is None, "the checkpoint says it, and gets the fast kernel"


def test_a_key_that_is_no_option_stops_it(
    run: Callable[[Path], subprocess.CompletedProcess[str]], version: str, tmp_path: Path
) -> None:
    """That the test above can fail, and that an operator's typo is noticed at start."""
    misspelt = tmp_path / "misspelt.yaml"
    misspelt.write_text(PROFILES[0].read_text() + "max-model-length: 5\n")
    done = run(misspelt)
    assert done.returncode != 0
    assert "unrecognized arguments" in done.stderr
    assert "max-model-length" in done.stderr
