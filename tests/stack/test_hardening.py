"""The hardening that compose.yaml promises, read from the running processes and containers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.stack.stack import Stack

SERVICES = (
    "alertmanager", "caddy", "gateway", "gpu-exporter", "grafana", "loopback", "node-exporter", "prometheus",
    "vllm",
)  # fmt: skip
NET_BIND_SERVICE = 1 << 10
# The official binary carries this as a file capability and cannot be executed without it.
CAPABILITIES = {"caddy": NET_BIND_SERVICE, "loopback": NET_BIND_SERVICE}


def test_these_are_all_the_services(stack: Stack) -> None:
    assert stack.services == sorted(SERVICES)


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize("service", SERVICES)
def test_its_process_has_no_privilege_and_can_get_none(service: str, stack: Stack) -> None:
    found = status(stack.pid(service))
    assert int(found["CapBnd"], 16) == CAPABILITIES.get(service, 0)
    assert found["NoNewPrivs"] == "1"
    assert found["Seccomp"] == "2"
    assert "0" not in found["Uid"].split()


@pytest.mark.parametrize("service", SERVICES)
def test_its_image_cannot_be_changed_from_inside(service: str, stack: Stack) -> None:
    mounts = Path(f"/proc/{stack.pid(service)}/mountinfo").read_text().splitlines()
    (root,) = [fields for fields in (line.split() for line in mounts) if fields[4] == "/"]
    assert "ro" in root[5].split(",")


@pytest.mark.parametrize("service", SERVICES)
def test_it_has_limits_and_comes_back(service: str, stack: Stack) -> None:
    host = stack.container(service)["HostConfig"]
    assert host["Memory"] > 0
    assert host["PidsLimit"] > 0
    assert host["Init"] is True
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    assert host["Privileged"] is False
    assert host["LogConfig"]["Type"] == "json-file"
    assert set(host["LogConfig"]["Config"]) == {"max-size", "max-file"}


@pytest.mark.parametrize("service", SERVICES)
def test_it_is_healthy_by_a_check_of_its_own(service: str, stack: Stack) -> None:
    assert stack.container(service)["Config"]["Healthcheck"]["Test"][0] == "CMD"
    assert stack.healthy(service)


def test_the_limits_are_the_kernels(stack: Stack) -> None:
    """One of them read back from the control group, whatever Docker says about it."""
    pid = stack.pid("gateway")
    group = Path("/sys/fs/cgroup") / group_of(pid, "memory").lstrip("/")
    limit = next(group / name for name in ("memory.max", "memory.limit_in_bytes") if (group / name).exists())
    assert int(limit.read_text()) == stack.container("gateway")["HostConfig"]["Memory"]


def group_of(pid: int, controller: str) -> str:
    """The path of a process's control group; version 1 has a hierarchy for each controller."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            return path
        if controller in controllers.split(","):
            return controller + path
    raise LookupError(controller)


def secrets(stack: Stack) -> dict[str, str]:
    folder = stack.home / "secrets"
    return {path.name: path.read_text().strip() for path in folder.iterdir() if path.suffix == ""}


def inspected(stack: Stack) -> Any:
    identities = stack.compose("ps", "--all", "--quiet").split()
    return json.loads(stack.run("docker", "inspect", *identities).stdout)


def test_no_secret_can_be_read_from_docker_inspect(stack: Stack) -> None:
    text = json.dumps(inspected(stack))
    assert len(secrets(stack)) >= 4
    assert [name for name, value in secrets(stack).items() if value in text] == []


def test_no_secret_stands_in_a_command_line_or_log(stack: Stack) -> None:
    commands = "".join(
        Path(f"/proc/{pid}/cmdline").read_text()
        for service in SERVICES
        for pid in pids(stack.container(service)["Id"])
    )
    logs = stack.compose("logs", "--no-color")
    found = [name for name, value in secrets(stack).items() if value in commands or value in logs]
    assert found == []


def pids(container: str) -> list[int]:
    """The host's numbers of all processes in a container, by their control group."""
    entries = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return [pid for pid in entries if container in read_or_empty(Path(f"/proc/{pid}/cgroup"))]


def read_or_empty(path: Path) -> str:
    """A process may end between being listed and being read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def test_a_service_sees_its_own_secrets_only(stack: Stack) -> None:
    mounted = {
        container["Config"]["Labels"]["com.docker.compose.service"]: {
            Path(mount["Destination"]).name
            for mount in container["Mounts"]
            if mount["Destination"].startswith("/run/secrets/")
        }
        for container in inspected(stack)
    }
    assert {service: names for service, names in mounted.items() if names} == {
        "alertmanager": {"alertmanager.yml"},
        "gateway": {"engine_api_key", "key_pepper", "admin_token"},
        "grafana": {"grafana_admin_password"},
        "vllm": {"engine_api_key"},
    }


def test_no_service_holds_the_docker_socket(stack: Stack) -> None:
    sources = {mount.get("Source", "") for container in inspected(stack) for mount in container["Mounts"]}
    assert not [source for source in sources if re.search(r"docker\.sock$", source)]
