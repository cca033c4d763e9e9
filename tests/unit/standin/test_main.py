"""The stand-in as a process."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

READY_SECONDS = 20.0


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A stand-in process on a free port, with a key, and its address."""
    key, ready = tmp_path / "key", tmp_path / "ready.json"
    key.write_text("engine-key\n")
    options = ["--port", "0", "--delay", "0.02", "--tokens", "1000"]
    files = ["--api-key-file", str(key), "--ready-file", str(ready)]
    with subprocess.Popen([sys.executable, "-m", "standin", *options, *files]) as process:
        deadline = time.monotonic() + READY_SECONDS
        while not ready.exists():
            assert process.poll() is None, "the stand-in ended"
            assert time.monotonic() < deadline, "the stand-in did not start"
            time.sleep(0.02)
        written = json.loads(ready.read_text())
        assert written["pid"] == process.pid
        yield process, f"http://127.0.0.1:{written['port']}"
        process.kill()


def test_it_serves_with_the_key_of_its_file_and_ends_clean_on_sigterm_with_a_stream_open(
    running: tuple[subprocess.Popen[bytes], str],
) -> None:
    process, address = running
    headers = {"authorization": "Bearer engine-key"}
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    url = f"{address}/v1/chat/completions"
    with httpx2.stream("POST", url, headers=headers, json=body) as reply:
        chunks = reply.iter_raw()
        assert next(chunks).startswith(b"data: {")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0


def test_one_event_arrives_at_a_time(running: tuple[subprocess.Popen[bytes], str]) -> None:
    _, address = running
    headers = {"authorization": "Bearer engine-key"}
    body = {"prompt": "hi", "stream": True, "max_tokens": 10}
    with httpx2.stream("POST", f"{address}/v1/completions", headers=headers, json=body) as reply:
        chunks = list(reply.iter_raw())
    assert len(chunks) == 10 + 1
    assert all(chunk.count(b"data: ") == 1 for chunk in chunks)


def test_a_client_that_leaves_ends_its_request(running: tuple[subprocess.Popen[bytes], str]) -> None:
    _, address = running
    headers = {"authorization": "Bearer engine-key"}

    def running_requests() -> str:
        lines = httpx2.get(f"{address}/metrics").text.splitlines()
        return next(line for line in lines if line.startswith("vllm:num_requests_running")).rpartition(" ")[2]

    body = {"prompt": "hi", "stream": True, "max_tokens": 1000}
    with httpx2.stream("POST", f"{address}/v1/completions", headers=headers, json=body) as reply:
        chunks = reply.iter_raw()
        next(chunks)
        assert running_requests() == "1.0"
    deadline = time.monotonic() + 2
    while running_requests() != "0.0":
        assert time.monotonic() < deadline, "the request runs on without its client"
        time.sleep(0.02)
