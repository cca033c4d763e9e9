"""What must be true before the stack is started, cheapest first. Each check raises OpsError with the fix."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.configfiles import ConfigurationError, load_yaml
from gateway.plans import Plans
from gateway.principal import client_models
from gateway.settings import RETIRED, EngineProfile, Settings
from ops import envfile, secretfiles
from ops.commands import Commands
from ops.docker import Published, published_ports, wants_gpu
from ops.errors import OpsError
from ops.gpus import CUDA_13_DRIVER, Gpu, find_gpus
from ops.site import Site

ENGINE = "vllm"
PLANS_FILE = Path("gateway/config/plans.yaml")
_STANDIN_FIX = "or put COMPOSE_FILE=compose.yaml:compose.standin.yaml in .env for the stand-in engine."
_TENSOR_PARALLEL = re.compile(r"^tensor-parallel-size:\s*(\d+)", re.MULTILINE)
_SS_LOCAL = 3  # the column of `ss` with the address that is listened on
_HTTP = 80
_LOOPBACK_VARIABLES = {8000: "VLLM_PORT", 9090: "PROMETHEUS_PORT", 9093: "ALERTMANAGER_PORT"}
# Tags whose image is built with CUDA 13; with -cu129 behind it a tag names the CUDA 12.9 build.
_CUDA_13_TAGS = frozenset({"v0.32.0"})


def check_files(site: Site) -> Mapping[str, str]:
    """The variables of `.env`, once it and all secrets were found good."""
    variables = site.variables()
    gone = secretfiles.missing(site.secrets)
    if gone:
        raise OpsError(f"These files are missing in secrets/: {', '.join(gone)}.", "Run `make setup`.")
    for name in secretfiles.NAMES:
        secretfiles.check_secret(site.secrets, name)
    _check_names(site)
    _check_plans(site, variables)
    return variables


def _check_names(site: Site) -> None:
    """Compose hands on the names that it knows alone: a misspelt one would have no effect, silently."""
    known = re.findall(r"\bGATEWAY_[A-Z_]+(?==)", (site.root / ".env.example").read_text(encoding="utf-8"))
    for name in envfile.parse(site.env_file.read_bytes().decode(), site.environ):
        if name in RETIRED and name not in known:
            raise OpsError(f"{name} in .env is no longer a setting.", RETIRED[name])
        if name.startswith("GATEWAY_") and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else "Take it out."
            raise OpsError(f"{name} in .env has no effect.", f"{hint} All are in .env.example.")


def _check_plans(site: Site, variables: Mapping[str, str]) -> None:
    """What would stop the gateway's start, said before: a mistake in the plans file or in the aliases."""
    try:
        profile = load_yaml(EngineProfile, site.profile(variables))
        plans = Plans.load(site.root / PLANS_FILE)
        aliases = Settings.read(
            {name: variables[name] for name in ("GATEWAY_MODEL_ALIASES",) if name in variables}
        ).model_aliases
        plans.check_models(client_models(profile, aliases))
    except ConfigurationError as error:
        raise OpsError(str(error), "Correct it: docs/plans.md has every field of the plans file.") from None


def check_gpu(
    commands: Commands, config: dict[str, Any], info: Mapping[str, Any], profile: Path, tag: str
) -> None:
    """Driver, cards and Docker's NVIDIA runtime, where the engine of this configuration wants a GPU."""
    if not wants_gpu(config, ENGINE):
        return
    gpus = find_gpus(commands)
    if not gpus:
        raise OpsError(
            "No NVIDIA GPU answers on this host (nvidia-smi).",
            f"Install NVIDIA's driver and reboot, {_STANDIN_FIX}",
        )
    if not _gives_gpus(commands, info):
        raise OpsError(
            "Docker has no NVIDIA runtime.",
            f"Install nvidia-container-toolkit and restart Docker, {_STANDIN_FIX}",
        )
    needed = _tensor_parallel(profile)
    if needed > len(gpus):
        raise OpsError(
            f"The profile {profile.stem} wants {needed} GPUs; this host has {len(gpus)}.",
            "Set GATEHOUSE_PROFILE=single-3090-awq in .env.",
        )
    _check_driver(gpus, tag)


def check_ports(commands: Commands, config: dict[str, Any], held_by_stack: set[int]) -> None:
    """Raises OpsError for the first port that another process has. Without `ss` Docker finds out itself."""
    result = commands.run(["ss", "-H", "-ltnp"], timeout=10)
    listeners = (
        [line for line in result.out.splitlines() if len(line.split()) > _SS_LOCAL] if result.ok else []
    )
    for published in published_ports(config):
        if published.protocol != "tcp" or published.port in held_by_stack:
            continue
        for line in listeners:
            if _collides(line, published):
                raise _taken(published, line)


def project_of(config: dict[str, Any]) -> str:
    """The compose project's name."""
    return str(config.get("name") or "gatehouse")


def _collides(line: str, published: Published) -> bool:
    """Whether a line of `ss` is about the published port, on an address that it would be published on."""
    address, _, port = line.split()[_SS_LOCAL].rpartition(":")
    anywhere = {"*", "0.0.0.0", "[::]"}
    return port == str(published.port) and (
        not published.address or address in {*anywhere, published.address}
    )


def _taken(published: Published, line: str) -> OpsError:
    found = re.search(r'users:\(\("(?P<name>[^"]+)",pid=(?P<pid>\d+)', line)
    who = f"{found['name']} (process {found['pid']})" if found else "another process"
    return OpsError(
        f"Port {published.port} is taken by {who}.",
        f"Stop it, or set {_port_variable(published)} in .env to a free port.",
    )


def _port_variable(published: Published) -> str:
    if published.service == "loopback":
        return _LOOPBACK_VARIABLES.get(published.target, "its variable")
    return "HTTP_PORT" if published.target == _HTTP else "HTTPS_PORT"


def _gives_gpus(commands: Commands, info: Mapping[str, Any]) -> bool:
    if "nvidia" in (info.get("Runtimes") or {}):
        return True
    if any(
        str(device.get("ID", "")).startswith("nvidia.com/gpu")
        for device in info.get("DiscoveredDevices") or ()
    ):
        return True
    # `--gpus` works through this hook too, without a runtime that `docker info` would show.
    return commands.run(["nvidia-container-runtime-hook", "--help"], timeout=10).code not in {124, 127}


def _tensor_parallel(profile: Path) -> int:
    found = _TENSOR_PARALLEL.search(profile.read_text(encoding="utf-8"))
    return int(found[1]) if found else 1


def _check_driver(gpus: list[Gpu], tag: str) -> None:
    oldest = min(gpu.driver_branch for gpu in gpus)
    if tag in _CUDA_13_TAGS and oldest < CUDA_13_DRIVER:
        raise OpsError(
            f"The NVIDIA driver {gpus[0].driver} is too old for vLLM {tag}, which is built with CUDA 13.",
            f"Install driver {CUDA_13_DRIVER} or newer, or set VLLM_VERSION={tag}-cu129 in .env.",
        )
