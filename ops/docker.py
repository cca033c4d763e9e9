"""Docker and Compose as this package uses them, and what their errors mean for an operator."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ops.commands import NOT_FOUND, Commands, Result
from ops.errors import OpsError

# `healthcheck.start_interval` needs Engine 25; `!override` in compose.*.yaml needs Compose 2.24.4.
MIN_ENGINE = (25, 0)
MIN_COMPOSE = (2, 24, 4)
_INSTALL = "Install Docker Engine with its compose plugin: https://docs.docker.com/engine/install/"

# (what the CLI or the engine writes, what it means, what to do), in the order they are tried.
_MEANINGS = (
    (
        r"permission denied while trying to connect to the docker",
        "This user may not talk to the Docker daemon.",
        "Run `sudo usermod -aG docker $USER` and log in again, or run this command as root.",
    ),
    (
        r"cannot connect to the docker daemon|failed to connect to the docker api|docker daemon running",
        "The Docker daemon does not answer.",
        "Start it: sudo systemctl start docker",
    ),
    (
        r"'compose' is not a docker command|unknown command: docker compose|unknown shorthand flag",
        "Docker has no compose plugin.",
        "Install the package docker-compose-plugin: https://docs.docker.com/compose/install/linux/",
    ),
    (
        r"could not select device driver \"?nvidia|unknown or invalid runtime name: nvidia",
        "Docker cannot give a GPU to a container.",
        "Install nvidia-container-toolkit and restart Docker, or use compose.standin.yaml in COMPOSE_FILE.",
    ),
    (
        r"port is already allocated|address already in use",
        "A port that the stack publishes is taken.",
        "Stop what holds it, or change its number in .env: HTTP_PORT, HTTPS_PORT, VLLM_PORT, …",
    ),
    (
        r"pool overlaps with other one",
        "A network of the stack overlaps with one that exists.",
        "Choose other ranges for EDGE_SUBNET and LOOPBACK_SUBNET in .env.",
    ),
    (
        r"no space left on device",
        "The disk is full.",
        "Free some space: `docker system df` shows what Docker holds.",
    ),
    (
        r"manifest unknown|not found: manifest|repository does not exist|pull access denied|not found$",
        "The registry does not have it.",
        "Check the image's name and tag, VLLM_VERSION in .env among them.",
    ),
    (
        r"toomanyrequests|rate limit",
        "The registry limits this address.",
        "Wait, or run `docker login`.",
    ),
    (
        r"container \w+ is restarting",
        "The service ends and is started again, over and over.",
        "Read why: make logs",
    ),
    (
        r"no such host|i/o timeout|connection refused|network is unreachable|tls handshake|x509|exceeded",
        "The registry cannot be reached.",
        "Check the network and Docker's proxy settings, or load the image from a file: docker load -i FILE",
    ),
)


@dataclass(frozen=True, slots=True)
class Published:
    """A port of the host and its target in the container. `address` is empty for all addresses."""

    service: str
    port: int
    target: int
    protocol: str
    address: str


@dataclass(frozen=True, slots=True)
class Container:
    """One line of `docker compose ps`."""

    service: str
    state: str
    health: str
    exit_code: int
    image: str
    ports: str


class Docker:
    """Calls through `commands`. Methods raise OpsError where Docker refuses, with its reason and the fix."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def check(self) -> dict[str, Any]:
        """`docker info`, after CLI, daemon, engine version and compose version were found good."""
        info = self._json(["docker", "info", "--format", "{{json .}}"])
        # With no daemon some versions of the CLI print what they know and exit with 0.
        if errors := info.get("ServerErrors"):
            raise explain(Result(1, err=str(errors[0])), "docker info")
        engine = str(info.get("ServerVersion", ""))
        if _version(engine) < MIN_ENGINE:
            raise OpsError(f"Docker Engine {engine} is too old; 25.0 is the oldest that works.", _INSTALL)
        compose = self._run(["docker", "compose", "version", "--short"]).out.strip()
        if _version(compose) < MIN_COMPOSE:
            raise OpsError(f"Docker Compose {compose} is too old; 2.24.4 is the oldest that works.", _INSTALL)
        return info

    def config(self, *options: str) -> dict[str, Any]:
        """The compose files with `.env` applied, as `docker compose config` resolves them."""
        return self._json(["docker", "compose", *options, "config", "--format", "json"])

    def has_image(self, image: str) -> bool:
        return self._commands.run(["docker", "image", "inspect", "--format", "{{.Id}}", image]).ok

    def pull(self, image: str) -> None:
        result = self._commands.show(["docker", "pull", image])
        if not result.ok:
            error = explain(result, f"docker pull {image}")
            raise OpsError(f"{image} cannot be pulled. {error.message}", error.fix)

    def build(self, services: Sequence[str], *options: str) -> None:
        command = ["docker", "compose", *options, "build", *services]
        if self._commands.attach(command) != 0:
            raise OpsError(
                f"The image for {', '.join(services)} could not be built (see above).",
                "The build needs its base image and a package index: check the network, then run this again.",
            )

    def containers(self) -> list[Container]:
        """The stack's containers, stopped ones too."""
        out = self._run(["docker", "compose", "ps", "--all", "--format", "json"]).out
        return [_container(entry) for entry in _json_lines(out)]

    def published_by(self, project: str) -> set[int]:
        """Host ports that running containers of `project` hold already."""
        label = f"label=com.docker.compose.project={project}"
        out = self._run(["docker", "ps", "--filter", label, "--format", "{{.Ports}}"]).out
        return {int(port) for port in re.findall(r":(\d+)->", out)}

    def restarts(self, service: str) -> int:
        """How often Docker has restarted the service's container; 0 where there is none."""
        container = self.capture("ps", "--all", "--quiet", service).out.strip()
        if not container:
            return 0
        out = self._commands.run(
            ["docker", "inspect", "--format", "{{.RestartCount}}", container]
        ).out.strip()
        return int(out) if out.isdigit() else 0

    def compose(self, *arguments: str) -> int:
        """Runs `docker compose …` on the terminal and returns its exit status."""
        return self._commands.attach(["docker", "compose", *arguments])

    def capture(self, *arguments: str, stdin: str | None = None) -> Result:
        """Runs `docker compose …` and captures what it says, whatever the outcome."""
        return self._commands.run(["docker", "compose", *arguments], stdin=stdin)

    def follow_logs(self, service: str, lines: int) -> AbstractContextManager[Iterator[str]]:
        return self._commands.follow(
            [
                "docker",
                "compose",
                "logs",
                "--follow",
                "--no-log-prefix",
                "--no-color",
                "--tail",
                str(lines),
                service,
            ]
        )

    def last_log(self, service: str, lines: int) -> list[str]:
        command = ["logs", "--no-log-prefix", "--no-color", "--tail", str(lines), service]
        return self.capture(*command).out.splitlines()

    def _run(self, argv: Sequence[str]) -> Result:
        result = self._commands.run(argv)
        if not result.ok:
            raise explain(result, " ".join(argv[:3]))
        return result

    def _json(self, argv: Sequence[str]) -> dict[str, Any]:
        result = self._run(argv)
        try:
            value = json.loads(result.out)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise OpsError(f"`{' '.join(argv[:3])}` does not answer in JSON.", _INSTALL)
        return value


def explain(result: Result, command: str) -> OpsError:
    """What a failed call means. Of an unknown error the last line is passed on."""
    if result.code == NOT_FOUND:
        return OpsError("Docker is not installed.", _INSTALL)
    for pattern, message, fix in _MEANINGS:
        if re.search(pattern, result.err, re.IGNORECASE | re.MULTILINE):
            return OpsError(message, fix)
    if found := re.search(r"required variable (\S+) is missing a value: (.+)", result.err):
        return OpsError(f"{found[1]} is not set.", f"{found[2][:1].upper()}{found[2][1:]}.")
    if found := re.search(r"dependency failed to start: container (\S+) (.+)", result.err):
        service = re.sub(r"^gatehouse-|-\d+$", "", found[1])
        return OpsError(f"The service {service} {found[2]}.", f"Read its log: make logs ARGS={service}")
    if found := re.search(r'service "(\S+)" didn\'t complete successfully: exit (\d+)', result.err):
        return OpsError(
            f"The service {found[1]} ended with {found[2]}.", f"Read its log: make logs ARGS={found[1]}"
        )
    lines = [line.strip() for line in result.err.splitlines() if line.strip()]
    return OpsError(lines[-1] if lines else f"`{command}` failed.", f"See what `{command}` says.")


def published_ports(config: dict[str, Any]) -> list[Published]:
    """The host ports in a resolved compose configuration."""
    found = []
    for service, body in config.get("services", {}).items():
        for port in body.get("ports") or ():
            if str(port.get("published") or "").isdigit():
                number, protocol = int(port["published"]), port.get("protocol", "tcp")
                address = port.get("host_ip") or ""
                found.append(Published(service, number, int(port["target"]), protocol, address))
    return found


def images(config: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """(images to pull, {service: image to build}) of a resolved compose configuration."""
    services = config.get("services", {})
    built = {
        name: body["image"] for name, body in services.items() if body.get("build") and body.get("image")
    }
    pulled = {body["image"] for body in services.values() if body.get("image") and not body.get("build")}
    return sorted(pulled - set(built.values())), built


def wants_gpu(config: dict[str, Any], service: str) -> bool:
    """Whether `service` reserves a GPU in a resolved compose configuration."""
    body = config.get("services", {}).get(service, {})
    reservations = ((body.get("deploy") or {}).get("resources") or {}).get("reservations") or {}
    return any("gpu" in (device.get("capabilities") or ()) for device in reservations.get("devices") or ())


def _version(text: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _json_lines(out: str) -> list[dict[str, Any]]:
    """Compose writes one object a line; versions before 2.21 wrote one list."""
    text = out.strip()
    if text.startswith("["):
        return list(json.loads(text))
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def _container(entry: dict[str, Any]) -> Container:
    ports = sorted(
        {
            f"{p.get('URL') or '0.0.0.0'}:{p['PublishedPort']}->{p['TargetPort']}/{p['Protocol']}"
            for p in entry.get("Publishers") or ()
            if p.get("PublishedPort") and ":" not in (p.get("URL") or "")
        }
    )
    return Container(
        service=entry.get("Service", ""),
        state=entry.get("State", ""),
        health=entry.get("Health", ""),
        exit_code=int(entry.get("ExitCode") or 0),
        image=entry.get("Image", ""),
        ports=" ".join(ports),
    )
