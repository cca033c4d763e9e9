"""Is this file what the source promised, and is this directory a model that loads?"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ops.errors import OpsError
from ops.fetch.listing import RemoteFile

_BLOCK = 4 * 1024 * 1024
# The format's own limit, and the length of the field in front of the header: https://huggingface.co/docs/safetensors
_MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_REFETCH = "Run `make model` again; if it stays so, try another MODEL_SOURCE or HF_ENDPOINT."


class Mismatch(Exception):
    """The bytes on disk are not the bytes the source listed."""


def check_file(path: Path, expected: RemoteFile) -> str:
    """SHA-256 of the file at `path`. Raises Mismatch where size or hash differ from `expected`."""
    size = path.stat().st_size
    if size != expected.size:
        raise Mismatch(f"{expected.path} has {size} bytes, not {expected.size}")
    sha256, sha1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            sha256.update(block)
            if expected.git_sha1:
                sha1.update(block)
    if expected.sha256 and sha256.hexdigest() != expected.sha256.lower():
        raise Mismatch(f"{expected.path} has SHA-256 {sha256.hexdigest()}, not {expected.sha256.lower()}")
    if not expected.sha256 and expected.git_sha1 and sha1.hexdigest() != expected.git_sha1:
        raise Mismatch(f"{expected.path} has git SHA-1 {sha1.hexdigest()}, not {expected.git_sha1}")
    return sha256.hexdigest()


def check_model(directory: Path, names: Iterable[str]) -> None:
    """Raises OpsError unless the files `names` make a model: real weights, all shards, readable JSON."""
    present = set(names)
    weights = sorted(name for name in present if name.endswith(".safetensors"))
    if not weights:
        raise OpsError(
            "The model has no *.safetensors weights.", "Name a repository that has them in MODEL_REPO."
        )
    if "config.json" not in present:
        raise OpsError("The model has no config.json.", "Name a complete model repository in MODEL_REPO.")
    for name in sorted(present):
        _refuse_stand_ins(directory / name)
        if name.endswith(".json"):
            _read_json(directory / name)
    tensors = {name: _tensor_names(directory / name) for name in weights}
    for name in sorted(present):
        if name.endswith(".safetensors.index.json"):
            _check_index(directory / name, tensors)


def _refuse_stand_ins(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(512).lstrip()
    if head.startswith(_LFS_POINTER):
        raise OpsError(
            f"{path.name} is a Git LFS pointer, not the file itself.",
            "Fetch the real files first (`git lfs pull` in that directory) or use MODEL_SOURCE=hub.",
        )
    if path.suffix != ".md" and head[:15].lower().startswith((b"<!doctype html", b"<html")):
        raise OpsError(
            f"{path.name} is an HTML page: a proxy or a login page answered instead of the source.", _REFETCH
        )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        raise OpsError(f"{path.name} is not valid JSON.", _REFETCH) from None


def _tensor_names(path: Path) -> set[str]:
    """Names of the tensors in one shard. Raises OpsError where its header does not describe this file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 2 <= length <= min(_MAX_HEADER_BYTES, size - _LENGTH_BYTES):
            raise OpsError(f"{path.name} is not a safetensors file.", _REFETCH)
        try:
            header = json.loads(file.read(length))
            tensors = {
                name: value["data_offsets"] for name, value in header.items() if name != "__metadata__"
            }
            end = max((int(offsets[1]) for offsets in tensors.values()), default=0)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            raise OpsError(f"{path.name} has a broken safetensors header.", _REFETCH) from None
    if _LENGTH_BYTES + length + end != size:
        raise OpsError(
            f"{path.name} has {size} bytes, not the {_LENGTH_BYTES + length + end} its header describes.",
            _REFETCH,
        )
    return set(tensors)


def _check_index(path: Path, tensors: dict[str, set[str]]) -> None:
    index = _read_json(path)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict):
        raise OpsError(f"{path.name} has no weight_map.", _REFETCH)
    for tensor, shard in weight_map.items():
        if shard not in tensors:
            raise OpsError(f"{path.name} names the shard {shard}, which is missing.", _REFETCH)
        if tensor not in tensors[shard]:
            raise OpsError(f"{path.name} says {tensor} is in {shard}; it is not.", _REFETCH)
