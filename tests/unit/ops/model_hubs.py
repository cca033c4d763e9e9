"""Model hubs on 127.0.0.1 that answer what huggingface_hub 2.4 and modelscope_hub 0.5 really ask."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

REPO = "Qwen/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARD = "model-00001-of-00002.safetensors"
# huggingface_hub writes whole chunks, so a break costs at most one.
LIBRARY_CHUNK = 10 * 1024**2
WANTED = {
    "LICENSE",
    "README.md",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
}


def safetensors(tensors: dict[str, int], fill: bytes = b"\x07") -> bytes:
    """A safetensors file that holds one U8 tensor of each given length in bytes."""
    header: dict[str, Any] = {}
    at = 0
    for name, length in tensors.items():
        header[name] = {"dtype": "U8", "shape": [length], "data_offsets": [at, at + length]}
        at += length
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + fill * at


def tiny_model() -> dict[str, bytes]:
    """Two shards with their index, and everything around them that a repository has, wanted or not."""
    shards = {
        "model-00001-of-00002.safetensors": {"a": 300_000},
        "model-00002-of-00002.safetensors": {"b": 200_000},
    }
    weight_map = {tensor: shard for shard, tensors in shards.items() for tensor in tensors}
    return {
        **{name: safetensors(tensors) for name, tensors in shards.items()},
        "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": weight_map}).encode(),
        "config.json": b'{"model_type": "qwen2"}',
        "generation_config.json": b"{}",
        "tokenizer.json": b"{}",
        "merges.txt": b"a b\n",
        "LICENSE": b"Apache License",
        "README.md": b"# tiny",
        ".gitattributes": b"* -text",
        "pytorch_model.bin": b"pickle",
        "model.gguf": b"GGUF",
        "original/consolidated.00.pth": b"pickle",
        "consolidated.safetensors": safetensors({"a": 8}),
    }


def write_model(directory: Path, files: Mapping[str, bytes]) -> Path:
    for name, body in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return directory


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"gatehouse-model.json"}


@dataclass
class HubState:
    """What the fake serves, how it misbehaves, and what it was asked: (path, Range header or "")."""

    files: dict[str, bytes] = field(default_factory=tiny_model)
    repo: str = REPO
    revisions: tuple[str, ...] = ("main", COMMIT)
    gated: bool = False
    status_for_api: int = 200
    passing_failures: int = 0
    cut_after: dict[str, int] = field(default_factory=dict)
    serve_instead: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fetched(self, name: str) -> list[str]:
        """The Range headers of the requests for the content of `name`."""
        digest = hashlib.sha256(self.files[name]).hexdigest()
        return [
            rng
            for path, rng in self.requests
            if (path.endswith(f"/{name}") and "/resolve/" in path) or digest in path
        ]


class _Handler(BaseHTTPRequestHandler):
    state: HubState
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name upstream
        """Silent."""

    def note(self) -> None:
        with self.state.lock:
            self.state.requests.append((self.path, self.headers.get("Range", "")))

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, value: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.answer(
            status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})}
        )

    def answer_content(self, name: str) -> None:
        """The bytes of one file, honouring Range, and cut short once where the test wants it."""
        body = self.state.serve_instead.get(name, self.state.files[name])
        start = 0
        if asked := self.headers.get("Range"):
            start = int(asked.removeprefix("bytes=").split("-")[0])
        rest = body[start:]
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        with self.state.lock:
            cut = self.state.cut_after.pop(name, None)
        if cut is not None:
            self.wfile.write(rest[:cut])
            self.close_connection = True
            return
        self.wfile.write(rest)

    def passing_failure(self) -> bool:
        with self.state.lock:
            if self.state.passing_failures <= 0:
                return False
            self.state.passing_failures -= 1
        self.answer(503)
        return True


class HubHandler(_Handler):
    """The Hugging Face hub: model info, tree, resolve with a redirect to storage for LFS files."""

    def do_GET(self) -> None:
        self.note()
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/storage/"):
            digest = path.removeprefix("/storage/")
            names = {hashlib.sha256(body).hexdigest(): name for name, body in self.state.files.items()}
            self.answer_content(names[digest])
        elif path.startswith("/api/models/"):
            self._api(path.removeprefix("/api/models/"))
        elif "/resolve/" in path:
            self._resolve(path.rpartition(f"/resolve/{COMMIT}/")[2])

    def _api(self, rest: str) -> None:
        state = self.state
        if state.status_for_api != 200:
            self.answer(state.status_for_api, b"<html>login</html>")
            return
        if not rest.startswith(state.repo + "/"):
            self.answer_json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            return
        if self.passing_failure():
            return
        kind, _, revision = rest.removeprefix(state.repo + "/").partition("/")
        if revision not in state.revisions:
            self.answer_json({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
        elif kind == "revision":
            self.answer_json(
                {"id": state.repo, "modelId": state.repo, "sha": COMMIT, "siblings": [], "tags": []}
            )
        else:
            self.answer_json([self._entry(name, body) for name, body in state.files.items()])

    def _entry(self, name: str, body: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(body)}
        entry["oid"] = hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
        if name.endswith(".safetensors"):
            entry["lfs"] = {"oid": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}
        return entry

    def _resolve(self, name: str) -> None:
        if self.state.gated and not self.headers.get("Authorization"):
            self.answer_json({"error": "Access is restricted"}, 401, {"X-Error-Code": "GatedRepo"})
        elif self.passing_failure():
            return
        elif name.endswith(".safetensors"):
            digest = hashlib.sha256(self.state.files[name]).hexdigest()
            self.answer(302, headers={"Location": f"/storage/{digest}", "X-Repo-Commit": COMMIT})
        else:
            self.answer_content(name)


class ModelScopeHandler(_Handler):
    """ModelScope: the file list with a SHA-256 for each file, and the content by query."""

    def do_GET(self) -> None:
        self.note()
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        base = f"/api/v1/models/{self.state.repo}/repo"
        if self.state.status_for_api != 200:
            self.answer_json({"Code": self.state.status_for_api, "Message": "no"}, self.state.status_for_api)
        elif parts.path == base + "/files":
            files = [self._entry(name, body) for name, body in self.state.files.items()]
            data = {"Files": files, "LatestCommitter": {"Id": ""}}
            self.answer_json({"Code": 200, "Success": True, "Data": data})
        elif parts.path == base and query["FilePath"] in self.state.files:
            self.answer_content(query["FilePath"])
        else:
            self.answer_json({"Code": 404, "Message": "record not found"}, 404)

    def _entry(self, name: str, body: bytes) -> dict[str, Any]:
        sha256 = hashlib.sha256(body).hexdigest()
        return {
            "Name": name,
            "Path": name,
            "Size": len(body),
            "Sha256": sha256,
            "Type": "blob",
            "Revision": COMMIT,
        }


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Silent: tests kill clients on purpose."""


@contextmanager
def serving(handler: type[_Handler], state: HubState) -> Iterator[str]:
    """The base URL of a hub that serves `state` while the block runs."""
    bound = type("Bound", (handler,), {"state": state})
    server = _Server(("127.0.0.1", 0), bound)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


Serve = Callable[[type[_Handler], HubState], str]
