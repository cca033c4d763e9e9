"""`python -m gateway`: what keeps it from starting is said in one line, with exit code 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"GATEWAY_PROT": "1"}, "gateway: GATEWAY_PROT is not a setting (did you mean GATEWAY_PORT?)."),
        (
            {"GATEWAY_ENGINE_PROFILE": "/nowhere/profile.yaml"},
            "gateway: /nowhere/profile.yaml cannot be read",
        ),
    ],
)
def test_a_wrong_configuration_is_one_line_and_exit_code_2(environ: dict[str, str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gateway"],
        cwd=ROOT,
        env={name: v for name, v in os.environ.items() if not name.startswith("GATEWAY_")} | environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1
