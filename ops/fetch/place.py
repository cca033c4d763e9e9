"""Which model is asked for and where it belongs. Standard library only: other commands ask this too."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ops.errors import OpsError
from ops.fetch.listing import Listing
from ops.fetch.manifest import Manifest, Origin

SOURCES = ("hub", "modelscope", "local")
_STAGING = ".incoming"
_DEFAULT_REVISION = {"hub": "main", "modelscope": "master", "local": ""}


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


def origin_of(environ: Mapping[str, str]) -> Origin:
    """What MODEL_SOURCE, MODEL_REPO and MODEL_REVISION ask for. Raises OpsError where that is nothing."""
    source = environ.get("MODEL_SOURCE") or "hub"
    if source not in SOURCES:
        raise OpsError(
            f"MODEL_SOURCE={source} does not exist.", f"Set it to one of {', '.join(SOURCES)} in .env."
        )
    repo = environ.get("MODEL_REPO") or ""
    if not repo:
        raise OpsError("MODEL_REPO is not set.", "Set it to the model's owner/name in .env.")
    revision = "" if source == "local" else environ.get("MODEL_REVISION") or _DEFAULT_REVISION[source]
    return Origin(source, repo, revision)


def place_of(environ: Mapping[str, str], origin: Origin) -> Place:
    """MODEL_ROOT (/models) and below it MODEL_NAME or the repository's name. Raises OpsError if outside."""
    name = environ.get("MODEL_NAME") or origin.repo
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or path.parts[0].startswith("."):
        raise OpsError(f"{name!r} is no directory below the model root.", "Correct MODEL_REPO in .env.")
    return Place(Path(environ.get("MODEL_ROOT") or "/models"), str(path))


def present_model(origin: Origin, place: Place) -> Manifest:
    """The published model's manifest, sizes checked. Raises OpsError if missing, damaged or another."""
    present = Manifest.read(place.target)
    if present is None:
        raise OpsError(f"There is no model at {place.target}.", "Run `make model`.")
    if present.origin != origin:
        was = f"{present.origin.repo} {present.origin.revision}".strip()
        raise OpsError(
            f"{place.target} holds {was} from {present.origin.source}, not what .env asks for.",
            "Run `make model`.",
        )
    problems = present.problems(place.target, hashes=False)
    if problems:
        raise OpsError(f"The model at {place.target} is damaged: {problems[0]}.", "Run `make model`.")
    return present
