"""What Docker's own words mean, and what is read from its JSON."""

import pytest

from ops.commands import Result
from ops.docker import Docker, Published, explain, images, published_ports, wants_gpu
from ops.errors import OpsError
from tests.unit.ops.fake_commands import DAEMON_DOWN, NO_COMMAND, NO_COMPOSE, NOT_ALLOWED, FakeCommands

CONFIG = {
    "name": "gatehouse",
    "services": {
        "vllm": {
            "image": "vllm/vllm-openai:v0.32.0",
            "deploy": {
                "resources": {"reservations": {"devices": [{"capabilities": ["gpu"], "driver": "nvidia"}]}}
            },
        },
        "gateway": {"image": "gatehouse-gateway:0.1.0", "build": {"context": "."}},
        "caddy": {
            "image": "caddy:2.11.7-alpine",
            "ports": [
                {"target": 80, "published": "80", "protocol": "tcp", "mode": "ingress"},
                {"target": 443, "published": "8443", "protocol": "udp"},
            ],
        },
        "loopback": {
            "image": "caddy:2.11.7-alpine",
            "ports": [{"target": 8000, "published": "8000", "protocol": "tcp", "host_ip": "127.0.0.1"}],
        },
    },
}


def failed(daemon: str) -> Result:
    return Result(1, err=f"Error response from daemon: {daemon}\n")


@pytest.mark.parametrize(
    ("result", "message", "fix"),
    [
        (NO_COMMAND, "not installed", "docs.docker.com/engine/install"),
        (DAEMON_DOWN, "does not answer", "systemctl start docker"),
        (NOT_ALLOWED, "may not talk", "usermod -aG docker"),
        (NO_COMPOSE, "no compose plugin", "docker-compose-plugin"),
        (
            Result(1, err="docker: 'compose' is not a docker command.\n"),
            "no compose plugin",
            "docker-compose-plugin",
        ),
        (
            failed('could not select device driver "nvidia" with capabilities: [[gpu]]'),
            "cannot give a GPU",
            "nvidia-container-toolkit",
        ),
        (
            failed(
                "failed to set up container networking: driver failed programming external connectivity on "
                "endpoint gatehouse-caddy-1: Bind for 0.0.0.0:443 failed: port is already allocated"
            ),
            "port",
            "HTTPS_PORT",
        ),
        (
            failed("manifest for vllm/vllm-openai:v9 not found: manifest unknown: manifest unknown"),
            "does not have it",
            "VLLM_VERSION",
        ),
        (
            failed('Get "https://registry.example/v2/": dial tcp: lookup registry.example: no such host'),
            "cannot be reached",
            "docker load",
        ),
        (failed("toomanyrequests: You have reached your pull rate limit."), "limits", "docker login"),
        (failed("write /var/lib/docker/tmp/x: no space left on device"), "disk is full", "system df"),
        (
            failed("invalid pool request: Pool overlaps with other one on this address space"),
            "overlaps",
            "EDGE_SUBNET",
        ),
        (
            Result(
                1,
                err="error while interpolating services.vllm.volumes.[0].source: required variable "
                "GATEHOUSE_PROFILE is missing a value: run make setup, or set it in .env",
            ),
            "GATEHOUSE_PROFILE is not set",
            "Run make setup",
        ),
        (
            Result(1, err="dependency failed to start: container gatehouse-gateway-1 is unhealthy"),
            "gateway is unhealthy",
            "make logs ARGS=gateway",
        ),
        (
            Result(1, err='service "engine-dirs" didn\'t complete successfully: exit 1'),
            "engine-dirs ended with 1",
            "make logs ARGS=engine-dirs",
        ),
        (
            Result(1, err="Error response from daemon: Container 6e8aa7a is restarting, wait until it runs"),
            "over and over",
            "make logs",
        ),
        (Result(1, err="one\nsomething new\n"), "something new", "docker info"),
        (Result(1), "failed", "docker info"),
    ],
)
def test_an_error_says_what_it_means_and_what_to_do(result: Result, message: str, fix: str) -> None:
    error = explain(result, "docker info")
    assert message in error.message
    assert fix in error.fix
    assert "\n" not in error.message + error.fix


def checked(engine: str = "28.5.2", compose: str = "2.40.3") -> dict[str, object]:
    commands = FakeCommands()
    commands.on_json("docker info", {"ServerVersion": engine, "Runtimes": {"runc": {}}})
    commands.on("docker compose version", out=f"{compose}\n")
    return Docker(commands).check()


def test_a_good_docker_is_described() -> None:
    assert checked()["ServerVersion"] == "28.5.2"
    assert checked(compose="v5.6.1")["Runtimes"] == {"runc": {}}


@pytest.mark.parametrize(("engine", "compose"), [("24.0.9", "2.40.3"), ("28.5.2", "2.24.3"), ("", "2.40.3")])
def test_old_versions_are_refused(engine: str, compose: str) -> None:
    with pytest.raises(OpsError, match="too old"):
        checked(engine, compose)


def test_a_daemon_that_is_down_is_seen_though_the_cli_exits_with_success() -> None:
    commands = FakeCommands()
    commands.on_json("docker info", {"ServerErrors": [DAEMON_DOWN.err.strip()]})
    with pytest.raises(OpsError, match="does not answer"):
        Docker(commands).check()


def test_ports_images_and_gpus_are_read_from_the_configuration() -> None:
    assert published_ports(CONFIG) == [
        Published("caddy", 80, 80, "tcp", ""),
        Published("caddy", 8443, 443, "udp", ""),
        Published("loopback", 8000, 8000, "tcp", "127.0.0.1"),
    ]
    assert images(CONFIG) == (
        ["caddy:2.11.7-alpine", "vllm/vllm-openai:v0.32.0"],
        {"gateway": "gatehouse-gateway:0.1.0"},
    )
    assert wants_gpu(CONFIG, "vllm")
    assert not wants_gpu(CONFIG, "gateway")
    assert not wants_gpu({}, "vllm")


@pytest.mark.parametrize("one_list", [False, True], ids=["lines", "list"])
def test_containers_are_read_in_both_forms(one_list: bool) -> None:  # noqa: FBT001
    line = (
        '{"Service": "caddy", "State": "running", "Health": "healthy", "ExitCode": 0, "Image": "c", '
        '"Publishers": '
        '[{"URL": "0.0.0.0", "TargetPort": 443, "PublishedPort": 443, "Protocol": "tcp"},'
        ' {"URL": "::", "TargetPort": 443, "PublishedPort": 443, "Protocol": "tcp"},'
        ' {"URL": "", "TargetPort": 80, "PublishedPort": 0, "Protocol": "tcp"}]}'
    )
    commands = FakeCommands()
    commands.on("docker compose ps", out=f"[{line}]" if one_list else f"{line}\n{line}\n")
    container = Docker(commands).containers()[0]
    assert (container.service, container.health, container.ports) == (
        "caddy",
        "healthy",
        "0.0.0.0:443->443/tcp",
    )


def test_ports_of_the_running_stack_are_its_own() -> None:
    commands = FakeCommands()
    commands.on("docker ps", out="0.0.0.0:80->80/tcp, [::]:80->80/tcp, 2019/tcp\n127.0.0.1:8000->8000/tcp\n")
    assert Docker(commands).published_by("gatehouse") == {80, 8000}
