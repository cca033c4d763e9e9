"""The way of a model: list, check the disk, fill a staging directory, verify, publish with a rename."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ops.errors import OpsError
from ops.fetch.listing import Listing, RemoteFile
from ops.fetch.manifest import Manifest, Origin
from ops.fetch.place import Place
from ops.fetch.progress import Progress, size_text
from ops.fetch.sources import INCOMPLETE, Source, explain_os_error
from ops.fetch.verify import Mismatch, check_file, check_model

# Left free beside the model, for logs and the engine's compiled kernels.
_RESERVE_BYTES = 512 * 1024**2
_TRIES_PER_FILE = 2

Say = Callable[[str], None]


def fetch_model(
    origin: Origin, source: Source, place: Place, say: Say, *, verify: bool, workers: int = 4
) -> Manifest:
    """The manifest of the model at `place`, fetched first where it is not there. Raises OpsError.

    A complete model of the same origin is left alone without asking the network; `verify` reads all its bytes
    again and replaces what is wrong.
    """
    try:
        with _alone(place.root):
            present = Manifest.read(place.target)
            if (
                present is not None
                and present.is_of(origin)
                and _is_whole(present, place, say, verify=verify)
            ):
                return present
            return _fetch(origin, source, place, say, workers)
    except OSError as error:
        raise explain_os_error(error) from error


def _is_whole(present: Manifest, place: Place, say: Say, *, verify: bool) -> bool:
    if verify:
        say(f"reading {size_text(present.size)} to compare every hash")
    problems = present.problems(place.target, hashes=verify)
    for problem in problems:
        say(f"damaged: {problem}")
    return not problems


def _fetch(origin: Origin, source: Source, place: Place, say: Say, workers: int) -> Manifest:
    say(f"asking {origin.source} for {origin.repo} {origin.revision}".rstrip())
    listing = source.listing()
    if not any(f.path.endswith(".safetensors") for f in listing.files):
        raise OpsError(
            f"{origin.repo} has no *.safetensors weights.", "Name a repository that has them in MODEL_REPO."
        )
    say(
        f"commit {listing.commit or 'not named by this source'}, "
        f"{len(listing.files)} files, {size_text(listing.size)}"
    )
    staging = place.staging(listing)
    _drop_other_staging(staging)
    staging.mkdir(parents=True, exist_ok=True)
    _reuse_published(place, staging, listing)
    _check_space(staging, listing, say)
    with Progress(staging, listing.size, say):
        files = _fill(source, listing, staging, say, workers)
    check_model(staging, (f.path for f in files))
    manifest = Manifest(
        origin, listing.commit, listing.digest, files, datetime.now(UTC).isoformat(timespec="seconds")
    )
    manifest.write(staging)
    _publish(staging, place.target)
    return manifest


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """One fetch at a time. The kernel frees the lock when the process ends, however it ends."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".fetch.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OpsError(
                f"Another `make model` is writing to {root}.", "Wait for it, or stop it first."
            ) from None
        yield


def _drop_other_staging(staging: Path) -> None:
    """Parts of another revision of the same model are of no use any more and cost its size in disk."""
    prefix = staging.name.rpartition(".")[0] + "."
    for other in staging.parent.glob(f"{prefix}*"):
        if other != staging:
            shutil.rmtree(other)


def _reuse_published(place: Place, staging: Path, listing: Listing) -> None:
    """Links what an older or damaged copy already has. Every linked file is verified like a new one."""
    present = Manifest.read(place.target)
    known = {(f.path, f.size, f.sha256) for f in present.files} if present else set()
    for file in listing.files:
        path, old = staging / file.path, place.target / file.path
        if (file.path, file.size, file.sha256) in known and not path.exists() and old.is_file():
            os.link(old, path)


def _check_space(staging: Path, listing: Listing, say: Say) -> None:
    have = sum(_bytes_there(staging, file) for file in listing.files)
    if have:
        say(f"going on: {size_text(have)} are here already")
    missing, free = listing.size - have, shutil.disk_usage(staging).free
    if missing + _RESERVE_BYTES > free:
        raise OpsError(
            f"{size_text(missing)} are still to come, {size_text(free)} are free at {staging.parent.parent}.",
            f"Free {size_text(missing + _RESERVE_BYTES - free)} more, or put MODEL_DIR on a larger disk.",
        )


def _bytes_there(staging: Path, file: RemoteFile) -> int:
    for path in (staging / file.path, staging / (file.path + INCOMPLETE)):
        if path.exists():
            return min(path.stat().st_size, file.size)
    return 0


def _fill(source: Source, listing: Listing, staging: Path, say: Say, workers: int) -> tuple[RemoteFile, ...]:
    """The listing's files with their SHA-256, on disk and verified. Small ones first: errors show early."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="fetch")
    ordered = sorted(listing.files, key=lambda f: f.size)
    jobs = [pool.submit(_fetch_verified, source, listing, file, staging / file.path, say) for file in ordered]
    try:
        wait(jobs, return_when=FIRST_EXCEPTION)
        failed = [job.exception() for job in jobs if job.done() and job.exception()]
        if failed and failed[0] is not None:
            raise failed[0]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return tuple(sorted((job.result() for job in jobs), key=lambda f: f.path))


def _fetch_verified(source: Source, listing: Listing, file: RemoteFile, path: Path, say: Say) -> RemoteFile:
    for attempt in range(1, _TRIES_PER_FILE + 1):
        if not path.exists():
            source.fetch(file, listing, path)
        try:
            return replace(file, sha256=check_file(path, file))
        except Mismatch as mismatch:
            path.unlink()
            say(f"{mismatch}: thrown away{', fetching it again' if attempt < _TRIES_PER_FILE else ''}")
    raise OpsError(
        f"{file.path} arrives damaged each time.",
        "The source or a proxy on the way is broken: try another HF_ENDPOINT or MODEL_SOURCE.",
    )


def _publish(staging: Path, target: Path) -> None:
    """Makes the staged model the model: readable by the engine's user, and never half after a power cut."""
    for path in staging.iterdir():
        path.chmod(0o644)
        _sync(path)
    staging.chmod(0o755)
    _sync(staging)
    target.parent.mkdir(parents=True, exist_ok=True)
    old = staging.with_name(staging.name + ".old")
    if target.exists():
        target.rename(old)
    staging.rename(target)
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
