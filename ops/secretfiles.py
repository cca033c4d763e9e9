"""The secret files that the stack mounts: made once, atomically, never overwritten."""

import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from gateway.configfiles import ConfigurationError, read_secret
from ops.errors import OpsError

# The last three are there before they are needed: a compose file that is added later mounts them.
NAMES = (
    "engine_api_key",
    "key_pepper",
    "admin_token",
    "grafana_admin_password",
    "database_password",
    "valkey_password",
    "jwt_secret",
)
ALERTMANAGER = "alertmanager.yml"
_DIRECTORY_MODE = 0o700
# Readable by the containers' users; the directory keeps everybody else on the host out.
_FILE_MODE = 0o444
_RANDOM_BYTES = 32
_TEMPORARY = ".new-"


def ensure_directory(directory: Path) -> None:
    """`directory` with mode 0700 and without what an interrupted run left. Raises OpsError."""
    try:
        directory.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
        directory.chmod(_DIRECTORY_MODE)
        for left in directory.glob(f"{_TEMPORARY}*"):
            left.unlink()
    except OSError as error:
        raise OpsError(f"{directory} cannot be written ({error.strerror}).", "Check who owns it.") from None


def ensure_secret(directory: Path, name: str, random: Callable[[int], str] = secrets.token_urlsafe) -> bool:
    """Makes the secret `name` unless it exists; True if it was made. Raises OpsError where it is weak.

    A new file appears under its name in one step and complete, whatever the umask, even when interrupted.
    """
    target = directory / name
    made = False
    if not os.path.lexists(target):
        temporary = _write_temporary(directory, name, random(_RANDOM_BYTES) + "\n")
        try:
            # Unlike a rename, a link never replaces what another run has made meanwhile.
            target.hardlink_to(temporary)
            made = True
        except FileExistsError:
            made = False
        finally:
            temporary.unlink()
    check_secret(directory, name)
    return made


def check_secret(directory: Path, name: str) -> None:
    """Raises OpsError unless the secret exists and is strong, by the same rule as the gateway's."""
    try:
        read_secret(directory, name)
    except ConfigurationError as error:
        problem, _, fix = str(error).partition(". ")
        raise OpsError(f"{problem[:1].upper()}{problem[1:]}.", fix or "Run `make setup`.") from None
    if not (directory / name).stat().st_mode & 0o004:
        raise OpsError(
            f"The containers' users may not read secrets/{name}.", f"Run `chmod 444 secrets/{name}`."
        )


def write_derived(directory: Path, name: str, text: str) -> bool:
    """Writes what is rendered from `.env`; True if it changed. The old stays until the new is complete."""
    target = directory / name
    try:
        if target.read_text(encoding="utf-8") == text and target.stat().st_mode & 0o777 == _FILE_MODE:
            return False
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    _write_temporary(directory, name, text).replace(target)
    return True


def missing(directory: Path, names: Iterable[str] = (*NAMES, ALERTMANAGER)) -> list[str]:
    """The names that are not there."""
    return [name for name in names if not (directory / name).is_file()]


def _write_temporary(directory: Path, name: str, text: str) -> Path:
    path = directory / f"{_TEMPORARY}{name}.{os.getpid()}"
    try:
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w", encoding="utf-8"
        ) as file:
            file.write(text)
            os.fchmod(file.fileno(), _FILE_MODE)  # the mode above is cut by the umask, this one is not
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OpsError(f"{path.parent} cannot be written ({error.strerror}).", "Check who owns it.") from None
    return path
