"""ModelScope as a source. Its own library resumes and checks; this module lists, calls and explains."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import requests
from modelscope_hub import HubApi
from modelscope_hub.errors import (
    AuthenticationError,
    FileIntegrityError,
    HubError,
    NetworkError,
    NotExistError,
    PermissionDeniedError,
    RequestTimeoutError,
)

from ops.errors import OpsError
from ops.fetch.listing import Listing, RemoteFile, needed
from ops.fetch.sources import explain_os_error

T = TypeVar("T")


class ModelScopeSource:
    """ModelScope's site at `endpoint`. Its listing has every file's SHA-256 but no commit of the whole."""

    def __init__(self, repo: str, revision: str, endpoint: str) -> None:
        self._repo, self._revision, self._endpoint = repo, revision, endpoint
        self._api = HubApi(endpoint=endpoint, token=os.environ.get("MODELSCOPE_API_TOKEN") or None)

    def listing(self) -> Listing:
        entries = self._explained(
            lambda: self._api.list_repo_files(self._repo, "model", revision=self._revision)
        )
        files = (RemoteFile(e.path, e.size, sha256=e.sha256) for e in entries if not e.is_dir)
        return Listing(None, needed(files))

    def fetch(self, file: RemoteFile, listing: Listing, target: Path) -> None:
        del listing
        self._explained(
            lambda: self._api.download_file(
                self._repo,
                "model",
                file.path,
                revision=self._revision,
                local_dir=target.parent,
                expected_sha256=file.sha256,
                file_size=file.size,
            )
        )

    def _explained(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (HubError, requests.RequestException, OSError, ValueError) as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> OpsError:
        repo, where = self._repo, self._endpoint
        if isinstance(error, NotExistError):
            return OpsError(
                f"{where} has no model {repo} with revision {self._revision}, or it is private.",
                "Correct MODEL_REPO and MODEL_REVISION in .env; for a private one set MODELSCOPE_API_TOKEN.",
            )
        if isinstance(error, AuthenticationError | PermissionDeniedError):
            return OpsError(
                f"{where} does not let this host have {repo}.",
                f"Accept its terms at {where} and put a token of that account in MODELSCOPE_API_TOKEN.",
            )
        if isinstance(error, FileIntegrityError):
            return OpsError(
                f"{where} sends other bytes than it lists: {error.message}.",
                "Run `make model` again later, or use MODEL_SOURCE=hub.",
            )
        if isinstance(error, NetworkError | RequestTimeoutError | requests.RequestException):
            return OpsError(
                f"{where} cannot be reached ({type(error).__name__}).",
                "Check the network, or use MODEL_SOURCE=hub or local. What has arrived is kept.",
            )
        if isinstance(error, OSError):
            return explain_os_error(error)
        return OpsError(f"{where} failed: {error}.", "Run `make model` again later, or use MODEL_SOURCE=hub.")
