"""`make model` on the host's side, and whether the engine's model is there."""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from ops.docker import Docker
from ops.errors import OpsError
from ops.fetch.listing import MANIFEST_NAME
from ops.fetch.manifest import Manifest
from ops.fetch.place import model_name, origin_of
from ops.site import Site

_FETCH_FIX = "Run `make model`."
# Handed to the container or the process that fetches, from .env or the shell.
_FORWARDED = (
    "MODEL_SOURCE",
    "MODEL_REPO",
    "MODEL_REVISION",
    "MODEL_LOCAL_DIR",
    "HF_ENDPOINT",
    "HF_TOKEN",
    "MODELSCOPE_ENDPOINT",
    "MODELSCOPE_API_TOKEN",
)
_TOKENS = ("HF_TOKEN", "MODELSCOPE_API_TOKEN")
INTERRUPTED = 130


def fetch_in_container(site: Site, *, verify: bool) -> None:
    """Runs the one-shot service `model` with its progress on the terminal. Raises OpsError."""
    docker = Docker(site.commands)
    docker.check()
    variables = site.variables()
    name = model_name(site.profile(variables))
    origin = origin_of(variables, name)
    _check_local_directory(variables)
    config = docker.config("--profile", "model")
    image = str(config.get("services", {}).get("model", {}).get("image", ""))
    if not docker.has_image(image):
        site.say(f"building {image}")
        docker.build(["model"], "--profile", "model")
    into = variables.get("MODEL_DIR") or "the volume models"
    site.say(f"{origin.repo} {origin.revision} from {origin.source} into {into}")
    environ = {**site.environ, **variables}
    tokens = [part for name in _TOKENS if environ.get(name) for part in ("--env", name)]
    command = ["python", "-m", "ops.fetch", *(["--verify"] if verify else [])]
    code = site.commands.attach(
        ["docker", "compose", "--profile", "model", "run", "--rm", *tokens, "model", *command],
        {name: environ[name] for name in _TOKENS if environ.get(name)},
    )
    _raise_for(code)


def fetch_on_host(site: Site, directory: Path, *, verify: bool) -> None:
    """The same without Docker: a process of its own writes the model below `directory`."""
    if find_spec("huggingface_hub") is None or find_spec("modelscope_hub") is None:
        raise OpsError(
            "The libraries that fetch models are not installed.", "Run `scripts/env.sh ops model`."
        )
    variables = site.variables()
    profile = site.profile(variables)
    environ = {**site.environ, **variables}
    forwarded = {name: environ[name] for name in _FORWARDED if environ.get(name)}
    forwarded |= {"MODEL_PROFILE": str(profile), "MODEL_DIR": str(directory.resolve())}
    command = [sys.executable, "-m", "ops.fetch", *(["--verify"] if verify else [])]
    _raise_for(site.commands.attach(command, forwarded))
    site.say(f"for the engine: MODEL_DIR={directory.resolve()} in .env")


def check_model_present(site: Site, docker: Docker, variables: Mapping[str, str], profile: Path) -> None:
    """Raises OpsError where the profile's model is not there; says so where it is not the one asked for."""
    name = model_name(profile)
    directory = variables.get("MODEL_DIR") or ""
    manifest = _in_directory(site.root / directory, name) if directory else _in_volume(docker, name)
    if manifest is None:
        return
    if not manifest.is_of(origin_of(variables, name)):
        was = f"{manifest.origin.repo} {manifest.origin.revision} from {manifest.origin.source}"
        site.say(f"note: the model is {was}; .env asks for another: `make model` fetches that")


def _in_directory(root: Path, name: str) -> Manifest | None:
    target = root / name
    manifest = Manifest.read(target)
    if manifest is not None:
        problems = manifest.problems(target, hashes=False)
        if problems:
            raise OpsError(f"The model in {target} is damaged: {problems[0]}.", _FETCH_FIX)
    elif not (target / "config.json").is_file():
        raise OpsError(f"There is no model in {target}.", _FETCH_FIX)
    return manifest


def _in_volume(docker: Docker, name: str) -> Manifest | None:
    """The manifest in the named volume, read through the one-shot service that sets the volumes' owners."""
    script = f"cat '/dirs/models/{name}/{MANIFEST_NAME}' 2>/dev/null || cat '/dirs/models/{name}/config.json'"
    service = ["--entrypoint", "/bin/sh", "engine-dirs", "-c", script]
    result = docker.capture("run", "--rm", "--no-deps", "-T", "--quiet-pull", *service)
    if not result.ok:
        if "No such file" in result.err or "can't open" in result.err:
            raise OpsError(f"There is no model {name} in the volume models.", _FETCH_FIX)
        raise OpsError(
            "The volume models cannot be read.", "See what `docker compose run --rm engine-dirs` says."
        )
    return Manifest.parse(result.out)


def _check_local_directory(variables: Mapping[str, str]) -> None:
    directory = variables.get("MODEL_LOCAL_DIR") or ""
    if variables.get("MODEL_SOURCE") == "local" and not (directory and Path(directory).is_dir()):
        raise OpsError(
            f"MODEL_SOURCE=local, and there is no directory {directory or '(MODEL_LOCAL_DIR is not set)'}.",
            "Set MODEL_LOCAL_DIR in .env to the directory that holds config.json and *.safetensors.",
        )


def _raise_for(code: int) -> None:
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code != 0:
        raise OpsError(
            "The model is not complete (see above).", "Run `make model` again: it goes on where it stopped."
        )
