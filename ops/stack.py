"""`make down`, `make logs`, `make status`."""

import json
from collections.abc import Mapping
from typing import Any

from ops.docker import Container, Docker
from ops.errors import OpsError
from ops.site import Site

_READY = (
    "import urllib.request as u,urllib.error as e\n"
    "try: r=u.urlopen('http://127.0.0.1:9100/readyz',timeout=5)\n"
    "except e.HTTPError as error: r=error\n"
    "print(r.read().decode())"
)


def down(site: Site) -> None:
    """Stops and removes the containers; volumes (keys, model, certificates, metrics) stay."""
    docker = Docker(site.commands)
    docker.check()
    if docker.compose("down", "--remove-orphans") != 0:
        raise OpsError("The stack did not stop cleanly (see above).", "Run `make down` again.")
    site.say("stopped. Keys, certificates, metrics and the model are kept in their volumes.")


def logs(site: Site, services: list[str], *, follow: bool, tail: int) -> None:
    """Shows the logs on the terminal, of all services where none is named."""
    docker = Docker(site.commands)
    docker.check()
    if docker.compose("logs", *(["--follow"] if follow else []), "--tail", str(tail), *services) != 0:
        raise OpsError("Docker shows no logs (see above).", "`make status` lists the services.")


def status(site: Site) -> dict[str, Any]:
    """{"services": [...], "gateway": the gateway's own readiness or None} for people and scripts."""
    docker = Docker(site.commands)
    docker.check()
    containers = sorted(docker.containers(), key=lambda c: c.service)
    return {"services": [_entry(c) for c in containers], "gateway": _readiness(docker, containers)}


def exit_code(found: Mapping[str, Any]) -> int:
    """0 where everything that should run does and the gateway is ready or degraded; 1 otherwise."""
    readiness = (found["gateway"] or {}).get("status")
    all_well = all(service["well"] for service in found["services"])
    return 0 if all_well and readiness in {"ready", "degraded"} else 1


def _entry(container: Container) -> dict[str, Any]:
    finished = container.state == "exited" and container.exit_code == 0
    running = container.state == "running" and container.health in {"", "healthy"}
    return {
        "service": container.service,
        "state": container.state,
        "health": container.health,
        "image": container.image,
        "ports": container.ports,
        "well": running or (finished and container.service in {"engine-dirs", "model"}),
    }


def _readiness(docker: Docker, containers: list[Container]) -> dict[str, Any] | None:
    if not any(c.service == "gateway" and c.state == "running" for c in containers):
        return None
    result = docker.capture("exec", "-T", "gateway", "python", "-c", _READY)
    return parse_readiness(result.out) if result.ok else None


def parse_readiness(text: str) -> dict[str, Any] | None:
    """The gateway's /readyz answer; None where it is not one."""
    try:
        body = json.loads(text)
    except ValueError:
        return None
    return body if isinstance(body, dict) and "status" in body else None
