"""`make setup`: writes `.env` and the secret files. Asks nothing, overwrites nothing, can be run again."""

import os
from dataclasses import dataclass

from ops import envfile, secretfiles
from ops.alerting import render
from ops.errors import OpsError
from ops.gpus import Gpu, find_gpus, fitting_profile
from ops.site import Site, profile_names

PRODUCTION = "compose.yaml"
STANDIN = "compose.yaml:compose.standin.yaml"


@dataclass(frozen=True, slots=True)
class Choice:
    """What the operator decided; None leaves it to what the host is found to be."""

    profile: str | None = None
    standin: bool | None = None


def setup(site: Site, choice: Choice) -> None:
    """Makes or completes `.env`, secrets and alertmanager.yml, and says what it did. Raises OpsError."""
    if choice.profile is not None and choice.profile not in profile_names(site.root):
        known = ", ".join(profile_names(site.root))
        raise OpsError(f"There is no profile {choice.profile}.", f"Use --profile with one of: {known}.")
    if os.path.lexists(site.env_file):
        _complete_env(site, choice)
    else:
        _write_env(site, choice)
    _write_secrets(site)
    _render_alerting(site)
    _say_next(site)


def _write_env(site: Site, choice: Choice) -> None:
    gpus = find_gpus(site.commands)
    profile = choice.profile or fitting_profile(gpus)
    standin = choice.standin if choice.standin is not None else not gpus
    site.say(_describe(gpus))
    text = envfile.assign(_example(site), "GATEHOUSE_PROFILE", profile)
    text = envfile.assign(text, "COMPOSE_FILE", STANDIN if standin else PRODUCTION)
    _replace_env(site, text)
    engine = (
        "the stand-in engine (compose.standin.yaml): it answers, but not with a model" if standin else "vLLM"
    )
    site.say(f"wrote .env: profile {profile}, {engine}")
    if standin and not gpus:
        site.say("with a GPU later: put COMPOSE_FILE=compose.yaml in .env")


def _complete_env(site: Site, choice: Choice) -> None:
    present = site.variables()
    standin = "compose.standin.yaml" in present.get("COMPOSE_FILE", "")
    if (choice.profile or present.get("GATEHOUSE_PROFILE")) != present.get("GATEHOUSE_PROFILE") or (
        choice.standin is not None and choice.standin != standin
    ):
        raise OpsError(
            ".env exists, and setup never changes what stands in it.",
            "Edit GATEHOUSE_PROFILE and COMPOSE_FILE in .env yourself.",
        )
    text = site.env_file.read_bytes().decode()  # as it is: reading text would change its line ends
    envfile.parse(text, site.environ)
    extended, added = envfile.extend(text, _example(site))
    if not added:
        site.say("left .env as it is")
        return
    _replace_env(site, extended)
    site.say(f"added to the end of .env, new in .env.example: {', '.join(added)}")


def _write_secrets(site: Site) -> None:
    secretfiles.ensure_directory(site.secrets)
    made = [name for name in secretfiles.NAMES if secretfiles.ensure_secret(site.secrets, name)]
    kept = [name for name in secretfiles.NAMES if name not in made]
    if made:
        site.say(f"made secrets/: {', '.join(made)}")
    if kept:
        site.say(f"left as they are in secrets/: {', '.join(kept)}")


def _render_alerting(site: Site) -> None:
    existed = (site.secrets / secretfiles.ALERTMANAGER).exists()
    if not secretfiles.write_derived(site.secrets, secretfiles.ALERTMANAGER, render(site.variables())):
        return
    site.say(f"rendered secrets/{secretfiles.ALERTMANAGER} from the ALERT_* variables of .env")
    if existed:
        site.say("a running stack takes it over with: docker compose up -d --force-recreate alertmanager")


def _say_next(site: Site) -> None:
    standin = "compose.standin.yaml" in site.variables().get("COMPOSE_FILE", "")
    site.say(f"next: {'make up' if standin else 'make model, then make up'}")


def _describe(gpus: list[Gpu]) -> str:
    if not gpus:
        return "no NVIDIA GPU answers on this host (nvidia-smi)"
    return "GPUs: " + ", ".join(f"{gpu.name} ({gpu.memory_mib} MiB)" for gpu in gpus)


def _example(site: Site) -> str:
    try:
        return (site.root / ".env.example").read_text(encoding="utf-8")
    except OSError as error:
        raise OpsError(
            f".env.example cannot be read ({error.strerror}).", "Restore it: git checkout .env.example"
        ) from None


def _replace_env(site: Site, text: str) -> None:
    """`.env` may hold a mail server's password, so only its owner reads it. Old or new, never half."""
    temporary = site.env_file.with_name(".env.new")
    try:
        mode = site.env_file.stat().st_mode & 0o777 if site.env_file.exists() else 0o600
        temporary.unlink(missing_ok=True)
        with os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(site.env_file)
    except OSError as error:
        raise OpsError(
            f".env cannot be written ({error.strerror}).", "Check who owns this directory."
        ) from None
