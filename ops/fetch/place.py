"""Which model is asked for and where it belongs. Standard library only: other commands ask this too."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ops.errors import OpsError
from ops.fetch.listing import Listing
from ops.fetch.manifest import Manifest, Origin

SOURCES = ("hub", "modelscope", "local")
_STAGING = ".incoming"
_MODEL_LINE = re.compile(r"""^model:\s*["']?(?P<path>[^"'#\s]+)""", re.MULTILINE)
_DEPTH = 3
_PROFILE_FIX = "Set GATEHOUSE_PROFILE in .env to the name of a file in vllm/profiles."


@dataclass(frozen=True, slots=True)
class Place:
    """`root`/`name`: where this model lives. Staging is under `root` too, so that a rename publishes."""

    root: Path
    name: str

    @property
    def target(self) -> Path:
        return self.root / self.name

    def staging(self, listing: Listing) -> Path:
        """Where this very content is gathered; another content of the same model has another directory."""
        return self.root / _STAGING / f"{self.name.replace('/', '--')}.{listing.digest[:16]}"


def model_name(profile: Path) -> str:
    """The model's directory below /models, from `model:` in a profile. Raises OpsError where it names none.

    One line is read with a pattern: the group `model` names no YAML parser.
    """
    try:
        found = _MODEL_LINE.search(profile.read_text(encoding="utf-8"))
    except OSError as error:
        raise OpsError(f"The profile {profile} cannot be read ({error.strerror}).", _PROFILE_FIX) from None
    path = PurePosixPath(found["path"]) if found else PurePosixPath()
    if path.parts[:2] != ("/", "models") or len(path.parts) < _DEPTH or ".." in path.parts:
        raise OpsError(f"{profile} names no model below /models.", "Write `model: /models/owner/name` in it.")
    return str(path.relative_to("/models"))


def origin_of(environ: Mapping[str, str], name: str) -> Origin:
    """What MODEL_SOURCE, MODEL_REPO (else `name`) and MODEL_REVISION ask for. Raises OpsError."""
    source = environ.get("MODEL_SOURCE") or "hub"
    if source not in SOURCES:
        raise OpsError(
            f"MODEL_SOURCE={source} does not exist.", f"Set it to one of {', '.join(SOURCES)} in .env."
        )
    revision = "" if source == "local" else environ.get("MODEL_REVISION") or "main"
    if source == "modelscope" and revision == "main":
        revision = "master"  # what its repositories call the default branch
    return Origin(source, environ.get("MODEL_REPO") or name, revision)


def present_model(origin: Origin, place: Place) -> Manifest:
    """The published model's manifest, sizes checked. Raises OpsError if it is not as asked."""
    present = Manifest.read(place.target)
    if present is None:
        raise OpsError(f"There is no model at {place.target}.", "Run `make model`.")
    if not present.is_of(origin):
        was = f"{present.origin.repo} {present.origin.revision}".strip()
        raise OpsError(
            f"{place.target} holds {was} from {present.origin.source}, not what .env asks for.",
            "Run `make model`.",
        )
    problems = present.problems(place.target, hashes=False)
    if problems:
        raise OpsError(f"The model at {place.target} is damaged: {problems[0]}.", "Run `make model`.")
    return present
