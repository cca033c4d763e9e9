"""`python -m ops.fetch` as a process of its own: killed, interrupted, started again."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.capabilities import ROOT
from tests.unit.ops.model_hubs import (
    LIBRARY_CHUNK,
    REPO,
    SHARD,
    WANTED,
    HubHandler,
    HubState,
    ModelScopeHandler,
    names,
    safetensors,
    serving,
    tiny_model,
    write_model,
)


@pytest.fixture
def hub() -> Iterator[tuple[HubState, str]]:
    state = HubState()
    with serving(HubHandler, state) as url:
        yield state, url


def write_profile(directory: Path) -> Path:
    profile = directory / "profile.yaml"
    profile.write_text(f"model: /models/{REPO}\n")
    return profile


def run_module(environ: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ops.fetch", *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": environ["MODEL_DIR"], **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_killed_and_started_again_the_process_goes_on(hub: tuple[HubState, str], tmp_path: Path) -> None:
    """The process is killed with half a shard on disk; the second one asks for the rest only."""
    state, url = hub
    environ = {"MODEL_PROFILE": str(write_profile(tmp_path)), "HF_ENDPOINT": url, "MODEL_DIR": str(tmp_path)}

    state.files[SHARD] = safetensors({"a": 25_000_000})

    class Stalling(HubHandler):
        def answer_content(self, name: str) -> None:
            if name != SHARD:
                super().answer_content(name)
                return
            body = state.files[SHARD]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:20_000_000])
            time.sleep(3)

    with serving(Stalling, state) as slow:
        process = run_module({**environ, "HF_ENDPOINT": slow})
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not any(
            p.stat().st_size >= LIBRARY_CHUNK for p in tmp_path.glob(f".incoming/*/{SHARD}.incomplete")
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (tmp_path / REPO).exists()
    state.requests.clear()
    output, _ = (again := run_module(environ)).communicate(timeout=50)
    assert again.returncode == 0, output
    asked = [rng for rng in state.fetched(SHARD) if rng]
    assert int(asked[0].removeprefix("bytes=").removesuffix("-")) >= LIBRARY_CHUNK
    assert (tmp_path / REPO / SHARD).read_bytes() == state.files[SHARD]
    assert "going on: " in output


@pytest.mark.parametrize("source", ["hub", "modelscope"])
def test_the_process_fetches_from_the_source_that_the_environment_names(tmp_path: Path, source: str) -> None:
    """As Compose starts it: what .env leaves out is there and empty."""
    handler = HubHandler if source == "hub" else ModelScopeHandler
    with serving(handler, HubState()) as url:
        environ = {
            "MODEL_PROFILE": str(write_profile(tmp_path)),
            "MODEL_DIR": str(tmp_path),
            "MODEL_SOURCE": source,
            "MODEL_REPO": "",
            "MODEL_REVISION": "",
            "HF_ENDPOINT": url if source == "hub" else "",
            "MODELSCOPE_ENDPOINT": url if source == "modelscope" else "",
        }
        output, _ = (process := run_module(environ)).communicate(timeout=50)
    assert process.returncode == 0, output
    assert names(tmp_path / REPO) == WANTED
    assert all(line.startswith("model: ") for line in output.splitlines())


def test_the_process_copies_a_local_directory(tmp_path: Path) -> None:
    environ = {
        "MODEL_PROFILE": str(write_profile(tmp_path)),
        "MODEL_DIR": str(tmp_path / "models"),
        "MODEL_SOURCE": "local",
        "MODEL_LOCAL_DIR": str(write_model(tmp_path / "disk", tiny_model())),
    }
    output, _ = (process := run_module(environ)).communicate(timeout=50)
    assert process.returncode == 0, output
    again, _ = run_module(environ, "--check").communicate(timeout=50)
    assert "is complete" in again


def test_an_interrupted_process_says_how_to_go_on(tmp_path: Path) -> None:
    reached = threading.Event()

    class Silent(HubHandler):
        def answer_content(self, name: str) -> None:
            reached.set()
            time.sleep(3)

    with serving(Silent, HubState()) as url:
        profile = write_profile(tmp_path)
        process = run_module({"MODEL_PROFILE": str(profile), "MODEL_DIR": str(tmp_path), "HF_ENDPOINT": url})
        assert reached.wait(30)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=2.5)
    assert process.returncode == 130
    assert output.splitlines()[-1] == "model: stopped. Run `make model` again: it goes on where it stopped."


def test_the_check_says_what_is_missing_and_needs_no_network(tmp_path: Path) -> None:
    process = run_module(
        {"MODEL_PROFILE": str(write_profile(tmp_path)), "MODEL_DIR": str(tmp_path)}, "--check"
    )
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert output == f"model: There is no model at {tmp_path / REPO}. Run `make model`.\n"
