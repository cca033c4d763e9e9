"""What a source offers and which of it an engine needs: plain values."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

_NEEDED = (
    "*.safetensors",
    "*.json",
    "*.txt",  # merges.txt, vocab.txt
    "*.model",
    "*.tiktoken",
    "*.jinja",
    "LICENSE*",
    "NOTICE*",
    "README.md",
)
_DUPLICATES = ("consolidated*.safetensors", "*.bin.index.json", "*.h5.index.json", "*.msgpack.index.json")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a model, `size` in bytes. A source gives SHA-256, or git's SHA-1 of the blob, or none."""

    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one model at one moment. `commit` is None where the source names none."""

    commit: str | None
    files: tuple[RemoteFile, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over all names, sizes and hashes: two listings with the same digest are the same model."""
        lines = sorted(f"{f.path}\0{f.size}\0{f.sha256 or f.git_sha1 or ''}" for f in self.files)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files)


def needed(files: Iterable[RemoteFile]) -> tuple[RemoteFile, ...]:
    """The files an engine loads, and the licence: top level only, weights as safetensors only, sorted.

    Sub-directories (`original/`, `onnx/`) and the names in `_DUPLICATES` hold the same weights once more.
    """
    return tuple(sorted((f for f in files if _is_needed(f.path)), key=lambda f: f.path))


def _is_needed(path: str) -> bool:
    if "/" in path or "\\" in path or path.startswith(".") or path == MANIFEST_NAME:
        return False
    return any(fnmatchcase(path, p) for p in _NEEDED) and not any(fnmatchcase(path, p) for p in _DUPLICATES)


MANIFEST_NAME = "gatehouse-model.json"
