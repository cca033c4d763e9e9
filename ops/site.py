"""One deployment on one host: where its files are and what it is configured to be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ops import envfile
from ops.commands import Commands
from ops.errors import OpsError

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Site:
    """`root` is the checkout, `environ` the shell's environment, which Compose prefers to `.env`."""

    root: Path
    commands: Commands
    environ: Mapping[str, str]
    say: Say

    @property
    def env_file(self) -> Path:
        return self.root / ".env"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets"

    def variables(self) -> dict[str, str]:
        """`.env` with the shell's variables over it, as Compose sees them. Raises OpsError."""
        try:
            text = self.env_file.read_bytes().decode()
        except FileNotFoundError:
            raise OpsError("There is no .env yet.", "Run `make setup`.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise OpsError(f".env cannot be read: {error}.", "Correct the file or its permissions.") from None
        return {**envfile.parse(text, self.environ), **self.environ}

    def profile(self, variables: Mapping[str, str]) -> Path:
        """The engine profile that GATEHOUSE_PROFILE names. Raises OpsError with the names there are."""
        name = variables.get("GATEHOUSE_PROFILE") or ""
        path = self.root / "vllm" / "profiles" / f"{name}.yaml"
        if name and path.is_file() and path.parent == self.root / "vllm" / "profiles":
            return path
        known = ", ".join(profile_names(self.root))
        problem = f"GATEHOUSE_PROFILE={name} does not exist." if name else "GATEHOUSE_PROFILE is not set."
        raise OpsError(problem, f"Set it in .env to one of: {known}.")


def profile_names(root: Path) -> list[str]:
    """The profiles there are, sorted."""
    return sorted(path.stem for path in (root / "vllm" / "profiles").glob("*.yaml"))
