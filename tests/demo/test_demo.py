"""`make demo` shows a key and snippets that work as pasted, and leaves nothing behind however it ends."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.demo import introduction
from tests.capabilities import ROOT

READY = "Ctrl-C stops it"
# A loaded machine with two cores; a free one takes a few seconds.
READY_SECONDS = 40.0
END_SECONDS = 15.0


@dataclass(frozen=True)
class RunningDemo:
    """A `make demo` in a session of its own, as in a terminal, with `home` as its temporary directory."""

    process: subprocess.Popen[str]
    home: Path
    output: str

    def line(self, name: str) -> str:
        (value,) = re.findall(rf"^{name}=(\S+)$", self.output, flags=re.MULTILINE)
        return str(value)

    def port(self) -> int:
        return int(self.line("OPENAI_BASE_URL").rpartition(":")[2].partition("/")[0])

    def snippet(self, first_line: str, last_line: str) -> str:
        found = re.search(rf"^{first_line}.*?{last_line}$", self.output, flags=re.MULTILINE | re.DOTALL)
        assert found, f"no snippet from {first_line!r} to {last_line!r} in {self.output}"
        return found.group()

    def members(self) -> list[int]:
        """The processes of its session."""
        return session_members(self.process.pid)

    def child(self, command: str) -> int:
        """The pid of the session's process whose command line ends so."""
        (pid,) = (pid for pid in self.members() if command_line(pid).endswith(command))
        return pid

    def end(self) -> str:
        """What it printed since it was ready, once it is gone."""
        rest, _ = self.process.communicate(timeout=END_SECONDS)
        return rest

    def assert_nothing_is_left(self) -> None:
        assert self.members() == []
        assert list(self.home.iterdir()) == []
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", self.port()), timeout=2)


def session_members(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # After the name in parentheses: state, parent, group, session.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def command_line(pid: int) -> str:
    return (Path("/proc") / str(pid) / "cmdline").read_bytes().decode().replace("\0", " ").strip()


def read_until_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    lines = []
    deadline = time.monotonic() + READY_SECONDS
    for line in process.stdout:
        lines.append(line)
        if line.startswith(READY):
            return "".join(lines)
        assert time.monotonic() < deadline, "".join(lines)
    raise AssertionError(f"the demo ended before it was ready: {''.join(lines)}")


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[Callable[[], RunningDemo]]:
    started = []

    def start() -> RunningDemo:
        # Under `make test ARGS=...` the outer make's variables must not reach this one.
        outer = {"ARGS", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS"}
        environment = {name: value for name, value in os.environ.items() if name not in outer}
        environment["TMPDIR"] = str(tmp_path)
        # A GATEWAY_ variable of the caller's must not reach the demo.
        environment["GATEWAY_MAX_BODY_BYTES"] = "1"
        process = subprocess.Popen(
            ["make", "demo"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return RunningDemo(process, tmp_path, read_until_ready(process))

    yield start
    for process in started:
        for pid in session_members(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def paste(text: str) -> str:
    done = subprocess.run(
        ["bash", "-c", text],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_snippet_works_where_the_path_has_a_space(tmp_path: Path) -> None:
    python = tmp_path / "my clones" / "python"
    python.parent.mkdir()
    python.symlink_to("/bin/cat")
    text = introduction("http://127.0.0.1:1/v1", "sk-gh-x", str(python))
    found = re.search(r"^\S.* - <<'EOF'$.*?^EOF$", text, re.MULTILINE | re.DOTALL)
    assert found
    assert paste(found[0]).startswith("from openai import OpenAI")


@pytest.mark.requires("curl")
def test_both_snippets_work_as_pasted_and_ctrl_c_leaves_nothing(
    start_demo: Callable[[], RunningDemo],
) -> None:
    demo = start_demo()
    assert demo.line("OPENAI_API_KEY").startswith("sk-gh-")
    (secrets,) = demo.home.glob("gatehouse-demo-*/secrets")
    assert secrets.stat().st_mode & 0o777 == 0o700

    shown = demo.output.partition("An answer, streamed just now:")[2].partition(READY)[0].strip()
    assert len(shown.split()) > 5

    events = paste(demo.snippet("curl -N ", "'"))
    assert events.startswith("data: {")
    assert events.strip().endswith("data: [DONE]")

    said = paste(demo.snippet(r"\S+python3? - <<'EOF'", "EOF"))
    assert said.strip() == shown

    os.killpg(demo.process.pid, signal.SIGINT)
    assert "Nothing is left" in demo.end()
    demo.assert_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ending_it_otherwise_leaves_nothing(
    start_demo: Callable[[], RunningDemo], number: signal.Signals
) -> None:
    demo = start_demo()
    os.killpg(demo.process.pid, number)
    assert "Nothing is left" in demo.end()
    demo.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("command", "name"), [("-m gateway", "gateway"), ("--embeddings", "stand-in engine")]
)
def test_a_part_that_dies_is_named_and_the_rest_goes_too(
    start_demo: Callable[[], RunningDemo], command: str, name: str
) -> None:
    demo = start_demo()
    os.kill(demo.child(command), signal.SIGKILL)
    assert f"The {name} stopped by itself (exit code -9)" in demo.end()
    assert demo.process.returncode != 0
    demo.assert_nothing_is_left()


def test_a_taken_port_is_no_obstacle(start_demo: Callable[[], RunningDemo]) -> None:
    first, second = start_demo(), start_demo()
    assert first.port() != second.port()
