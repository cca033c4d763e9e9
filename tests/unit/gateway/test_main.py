"""`python -m gateway`: what keeps it from starting is said in one line, with exit code 2."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_a_wrong_configuration_is_one_line_and_exit_code_2() -> None:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "gateway"],
        cwd=ROOT,
        env=outside | {"GATEWAY_PROT": "1"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gateway: GATEWAY_PROT is not a setting (did you mean GATEWAY_PORT?).")
    assert done.stderr.count("\n") == 1
