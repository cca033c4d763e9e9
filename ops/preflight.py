"""What must be true before the stack is started, cheapest first. Each check raises OpsError with the fix."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops import secretfiles
from ops.commands import Commands
from ops.docker import Published, published_ports, wants_gpu
from ops.errors import OpsError
from ops.gpus import CUDA_13_DRIVER, Gpu, find_gpus
from ops.site import Site

ENGINE = "vllm"
_STANDIN_FIX = "or put COMPOSE_FILE=compose.yaml:compose.standin.yaml in .env for the stand-in engine."
_TENSOR_PARALLEL = re.compile(r"^tensor-parallel-size:\s*(\d+)", re.MULTILINE)
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
    site.profile(variables)
    return variables


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
    """Raises OpsError for the first port that another process listens on."""
    for published in published_ports(config):
        if published.protocol == "tcp" and published.port not in held_by_stack:
            _check_port(commands, published)


def project_of(config: dict[str, Any]) -> str:
    """The compose project's name."""
    return str(config.get("name") or "gatehouse")


def _check_port(commands: Commands, published: Published) -> None:
    port = published.port
    result = commands.run(["ss", "-H", "-ltnp", f"sport = :{port}"], timeout=10)
    holders = (
        [line for line in result.out.splitlines() if _same_address(line, published)] if result.ok else []
    )
    if not holders:
        return
    found = re.search(r'users:\(\("(?P<name>[^"]+)",pid=(?P<pid>\d+)', holders[0])
    who = f"{found['name']} (process {found['pid']})" if found else "another process"
    variable = {"80": "HTTP_PORT", "443": "HTTPS_PORT"}.get(str(port), _port_variable(published))
    raise OpsError(f"Port {port} is taken by {who}.", f"Stop it, or set {variable} in .env to a free port.")


def _same_address(line: str, published: Published) -> bool:
    """Whether a line of `ss` is about an address that collides with the published one."""
    fields = line.split()
    local = fields[3].rpartition(":")[0].strip("[]") if len(fields) > 3 else ""
    return not published.address or local in {"", "*", "0.0.0.0", "::", published.address}


def _port_variable(published: Published) -> str:
    if published.service == "loopback":
        return "VLLM_PORT, PROMETHEUS_PORT or ALERTMANAGER_PORT"
    return "HTTP_PORT or HTTPS_PORT"


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
