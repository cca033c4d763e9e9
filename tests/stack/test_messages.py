"""What `make up` says when something is missing: one line with the fix, and no traceback."""

from pathlib import Path

import pytest

from tests.stack.stack import Stack


@pytest.fixture
def spare(stack: Stack, tmp_path: Path) -> Stack:
    """A second copy of the project, set up like the first and not started."""
    home = tmp_path / "spare"
    stack.run("cp", "--archive", str(stack.home), str(home))
    return Stack(home, f"{stack.project}-spare", stack.environment, stack.ports, stack.hook)
