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
MISSPELT = "misspelt"
Parsed = Mapping[str, dict[str, Any]]


class Entrypoint:
    """Runs vllm/entrypoint.sh with a `vllm` command that only says how it was called."""

    def __init__(self, home: Path, python: Path, model: str) -> None:
        self._home = home
        self._model = model
        commands = home / "bin"
        commands.mkdir()
        say = 'import json, os, sys; print(json.dumps([sys.argv[1:], os.environ["VLLM_API_KEY"]]))'
        for name, arguments in (("vllm", f"-c '{say}'"), ("python3", "")):
            (commands / name).write_text(f'#!/bin/sh\nexec {python} {arguments} "$@"\n')
            (commands / name).chmod(0o755)
        (home / "key").write_text("k" * 40)

    def arguments(self, name: str, profile: str) -> list[str]:
        """The arguments that vLLM gets for a profile, in which only the model's place is this machine's."""
        path = self._home / f"{name}.yaml"
        lines = [
            f"model: {self._model}" if line.startswith("model:") else line for line in profile.splitlines()
        ]
        path.write_text("\n".join(lines) + "\n")
        environment = {
            "PATH": f"{self._home / 'bin'}:{os.environ['PATH']}",
            "GATEHOUSE_ENGINE_PROFILE": str(path),
            "GATEHOUSE_ENGINE_KEY_FILE": str(self._home / "key"),
            "GATEHOUSE_FAILURE_PAUSE": "0",
        }
        done = subprocess.run(
            ["sh", ROOT / "vllm" / "entrypoint.sh"],
            env=environment,
            cwd=self._home,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        arguments, key = json.loads(done.stdout)
        assert key == "k" * 40
        assert key not in arguments
        return [str(argument) for argument in arguments]


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=pytest.mark.requires(f"vllm-{one}")) for one in VERSIONS],
)
def parsed(
    request: pytest.FixtureRequest,
    capability: Callable[[str], Mapping[str, str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Parsed:
    """What one version makes of every profile, and of one with an option that does not exist."""
    offers = capability(f"vllm-{request.param}")
    python = Path(offers["VENV"]) / "bin" / "python"
    home = tmp_path_factory.mktemp("entrypoint")
    entrypoint = Entrypoint(home, python, offers["MODEL"])
    profiles = {path.stem: path.read_text() for path in PROFILES}
    profiles[MISSPELT] = PROFILES[0].read_text() + "max-model-length: 5\n"
    called = [entrypoint.arguments(name, profile) for name, profile in profiles.items()]
    script = ROOT / "tests" / "engine" / "vllm" / "parse_options.py"
    done = subprocess.run(
        [python, script],
        input=json.dumps(called),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(profiles, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_every_key_of_a_profile_is_an_option_and_arrives(parsed: Parsed, profile: Path) -> None:
    assert "error" not in parsed[profile.stem], parsed[profile.stem]["error"]
    options = parsed[profile.stem]["options"]
    for name, value in yaml.safe_load(profile.read_text()).items():
        arrived = options[name.replace("-", "_")]
        if name == "served-model-name":
            assert arrived == ([value] if isinstance(value, str) else value)
        elif name == "model":
            assert Path(arrived).is_dir()
        else:
            assert arrived == value, name
    assert (options["host"], options["port"]) == ("0.0.0.0", 8000)
    assert options["api_key"] is None, "the key is never an argument"
    assert options["quantization"] is None, "the checkpoint says it, and gets the fast kernel"


def test_a_key_that_is_no_option_stops_it(parsed: Parsed) -> None:
    assert "unrecognized arguments: --max-model-length" in parsed[MISSPELT]["error"]
