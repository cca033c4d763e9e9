"""Where a model can come from. A source lists its files and puts one on disk, going on from what is there."""

import errno
import os
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Protocol, TypeVar

import httpx2
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils._headers import build_hf_headers

from ops.errors import OpsError
from ops.fetch.listing import Listing, RemoteFile, needed

INCOMPLETE = ".incomplete"
_TRIES = 5
_BLOCK = 4 * 1024 * 1024
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})

T = TypeVar("T")


class Source(Protocol):
    """A place that has models. Both methods raise OpsError with the fix."""

    def listing(self) -> Listing: ...

    def fetch(self, file: RemoteFile, listing: Listing, target: Path) -> None:
        """Writes `file` to `target`, going on from `target` + INCOMPLETE where that exists."""


class HubSource:
    """The Hugging Face hub or a mirror of its API at `endpoint`.

    Files come over plain HTTP with ranges, not over Xet: mirrors do not speak it, and `hf_hub_download`
    keeps no partial file between two runs (huggingface_hub 2.4), while `http_get` goes on from one.
    """

    def __init__(
        self, repo: str, revision: str, endpoint: str, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._repo, self._revision, self._endpoint, self._wait = repo, revision, endpoint.rstrip("/"), wait
        self._api = HfApi(endpoint=self._endpoint)

    def listing(self) -> Listing:
        return self._explained(self._list)

    def fetch(self, file: RemoteFile, listing: Listing, target: Path) -> None:
        part = target.with_name(target.name + INCOMPLETE)
        url = hf_hub_url(self._repo, file.path, revision=listing.commit, endpoint=self._endpoint)
        # A compressed answer cannot be resumed by its plain length.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}

        def once() -> None:
            have = part.stat().st_size if part.exists() else 0
            if have > file.size:
                part.unlink()
                have = 0
            with part.open("ab") as out:
                http_get(url, out, resume_size=have, headers=headers, expected_size=file.size)

        self._explained(once)
        part.replace(target)

    def _list(self) -> Listing:
        info = self._api.model_info(self._repo, revision=self._revision)
        if info.sha is None:
            raise OpsError(
                f"{self._endpoint} names no commit for {self._repo}.", "Check HF_ENDPOINT in .env."
            )
        tree = self._api.list_repo_tree(self._repo, revision=info.sha, recursive=False)
        files = needed(_remote_file(entry) for entry in tree if isinstance(entry, RepoFile))
        return Listing(info.sha, files)

    def _explained(self, action: Callable[[], T]) -> T:
        """The result of `action`, tried a few times where the failure can pass; else an OpsError."""
        for attempt in range(1, _TRIES + 1):
            try:
                return action()
            except (HfHubHTTPError, httpx2.HTTPError, OSError, ValueError, KeyError, TypeError) as error:
                if attempt == _TRIES or not _can_pass(error):
                    raise self._explain(error) from error
                self._wait(2.0 ** (attempt - 1))
        raise AssertionError("unreachable")

    def _explain(self, error: Exception) -> OpsError:
        where = self._endpoint
        if isinstance(error, GatedRepoError | RepositoryNotFoundError | RevisionNotFoundError):
            return self._explain_repository(error)
        if isinstance(error, HFValidationError):
            return OpsError(
                f"{self._repo!r} is no repository's name.", "Set MODEL_REPO to owner/name in .env."
            )
        if isinstance(error, HfHubHTTPError):
            return _explain_status(error, where)
        if isinstance(error, httpx2.HTTPError | OfflineModeIsEnabled):
            return OpsError(
                f"{where} cannot be reached ({type(error).__name__}).",
                "Check the network, name a mirror in HF_ENDPOINT, or use MODEL_SOURCE=modelscope or local. "
                "What has arrived is kept.",
            )
        if isinstance(error, OSError):
            return explain_os_error(error)
        reason = f"{where} does not answer like a model hub ({type(error).__name__})."
        return OpsError(reason, "Check HF_ENDPOINT in .env.")

    def _explain_repository(self, error: Exception) -> OpsError:
        repo, where = self._repo, self._endpoint
        if isinstance(error, GatedRepoError):
            return OpsError(
                f"{repo} is gated: its terms must be accepted first.",
                f"Accept them at {where}/{repo} and put a token of that account in HF_TOKEN.",
            )
        if isinstance(error, RevisionNotFoundError):
            return OpsError(f"{repo} has no revision {self._revision}.", "Correct MODEL_REVISION in .env.")
        return OpsError(
            f"{where} has no model {repo}, or it is private.",
            "Correct MODEL_REPO in .env; for a private one put a token in HF_TOKEN.",
        )


class LocalSource:
    """A directory that already holds a model: an HF snapshot, a git clone with LFS files, a copy."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def listing(self) -> Listing:
        if not self._directory.is_dir():
            raise OpsError(
                f"There is no directory {self._directory}.",
                "Set MODEL_LOCAL_DIR in .env to the directory that holds config.json and *.safetensors.",
            )
        # Followed, because an HF snapshot is made of links.
        paths = (path for path in self._directory.iterdir() if path.is_file())
        return Listing(None, needed(RemoteFile(path.name, path.stat().st_size) for path in paths))

    def fetch(self, file: RemoteFile, listing: Listing, target: Path) -> None:
        del listing
        part = target.with_name(target.name + INCOMPLETE)
        try:
            with (self._directory / file.path).open("rb") as source, part.open("ab") as out:
                if out.tell() > file.size:
                    out.truncate(0)
                source.seek(out.tell())
                while block := source.read(_BLOCK):
                    out.write(block)
        except OSError as error:
            raise explain_os_error(error) from error
        part.replace(target)


def explain_os_error(error: OSError) -> OpsError:
    """A full disk and a closed directory have fixes of their own; anything else is named."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return OpsError(
            "The disk is full.", "Free some space and run `make model` again: it goes on where it stopped."
        )
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return OpsError(
            f"{error.filename} cannot be written ({error.strerror}).", "Check who owns the model directory."
        )
    return OpsError(f"The download failed: {error}.", "Run `make model` again: it goes on where it stopped.")


def token_present() -> bool:
    return bool(os.environ.get("HF_TOKEN"))


def _remote_file(entry: RepoFile) -> RemoteFile:
    if entry.lfs is not None:
        return RemoteFile(entry.path, entry.lfs.size, sha256=entry.lfs.sha256)
    return RemoteFile(entry.path, entry.size, git_sha1=entry.blob_id)


def _can_pass(error: Exception) -> bool:
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in _PASSING
    # http_get reports a short or long body as an OSError without a number.
    return isinstance(error, httpx2.TransportError) or (isinstance(error, OSError) and error.errno is None)


def _explain_status(error: HfHubHTTPError, where: str) -> OpsError:
    status = error.response.status_code
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        state = "refuses the token in HF_TOKEN" if token_present() else "wants a token"
        return OpsError(f"{where} {state} ({status}).", "Put a valid token in HF_TOKEN.")
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return OpsError(
            f"{where} limits this address (429).", "Wait a few minutes, or put a token in HF_TOKEN."
        )
    return OpsError(
        f"{where} answers {status}.", "Run `make model` again later, or name a mirror in HF_ENDPOINT."
    )
