"""What can be reached, from where."""

import json
import re
import ssl
import urllib.error
import urllib.request
from contextlib import closing
from http.client import HTTPSConnection

import pytest

from tests.stack.outside import Outside
from tests.stack.stack import Stack

LOOPBACK_PORTS = ("VLLM_PORT", "PROMETHEUS_PORT", "ALERTMANAGER_PORT")
PUBLIC_PORTS = ("HTTP_PORT", "HTTPS_PORT")

# Who can open a connection to what matters most. Everyone that is not named here must fail.
CALLERS = {
    ("vllm", 8000): {"gateway", "loopback", "prometheus"},
    # Key administration and Caddy's configuration listen inside their own container only.
    ("gateway", 8081): {"gateway"},
    ("caddy", 2019): {"caddy"},
    # Alerts can be silenced here.
    ("alertmanager", 9093): {
        "caddy",
        "gateway",
        "gpu-exporter",
        "grafana",
        "loopback",
        "node-exporter",
        "prometheus",
    },
}


def test_only_caddys_ports_are_published_on_all_addresses(stack: Stack) -> None:
    published = {
        (service, binding["HostIp"], int(binding["HostPort"]))
        for service in stack.services
        for bindings in (stack.container(service)["NetworkSettings"]["Ports"] or {}).values()
        for binding in bindings or ()
    }
    everywhere = {(service, port) for service, address, port in published if address in {"0.0.0.0", "::"}}
    assert everywhere == {("caddy", stack.ports[name]) for name in PUBLIC_PORTS}
    inside = {(service, port) for service, address, port in published if address == "127.0.0.1"}
    assert inside == {("loopback", stack.ports[name]) for name in LOOPBACK_PORTS}
    assert {address for _, address, _ in published} <= {"0.0.0.0", "::", "127.0.0.1"}


def test_the_hosts_listening_sockets_agree(stack: Stack) -> None:
    listening = stack.run("ss", "-Hltn").stdout
    for name in PUBLIC_PORTS:
        assert re.search(rf"\s0\.0\.0\.0:{stack.ports[name]}\s", listening)
    for name in LOOPBACK_PORTS:
        found = re.findall(rf"\s(\S+):{stack.ports[name]}\s", listening)
        assert found == ["127.0.0.1"], (name, found)


def test_another_machine_reaches_caddy_and_nothing_else(stack: Stack, another_machine: Outside) -> None:
    reached = {
        name for name, port in stack.ports.items() if another_machine.connects(another_machine.host, port)
    }
    assert reached == set(PUBLIC_PORTS)


def test_another_machine_cannot_go_through_the_host_to_a_container(
    stack: Stack, another_machine: Outside
) -> None:
    ports = {
        "vllm": 8000,
        "gateway": 8080,
        "prometheus": 9090,
        "alertmanager": 9093,
        "grafana": 3000,
        "loopback": 8000,
    }
    with another_machine.route_behind_host("172.16.0.0/12"):
        reached = [
            (service, network)
            for service, port in ports.items()
            for network, address in stack.addresses(service).items()
            if another_machine.connects(address, port)
        ]
    assert reached == []


@pytest.mark.parametrize(("service", "port"), CALLERS)
def test_only_the_named_services_can_connect_to(service: str, port: int, stack: Stack) -> None:
    addresses = stack.addresses(service).values()
    callers = {
        caller
        for caller in stack.services
        if any(stack.connects(caller, "127.0.0.1" if caller == service else to, port) for to in addresses)
    }
    assert callers | {service} == CALLERS[service, port] | {service}


def test_the_engine_cannot_reach_out_and_alertmanager_can(stack: Stack, another_machine: Outside) -> None:
    """One outside address, two containers: so the failure is the network's, not the address's."""
    port = int(stack.hook.rstrip("/").rpartition(":")[2])
    assert stack.connects("alertmanager", another_machine.address, port)
    assert not stack.connects("vllm", another_machine.address, port)


def test_only_the_services_that_must_reach_out_can(stack: Stack, another_machine: Outside) -> None:
    port = int(stack.hook.rstrip("/").rpartition(":")[2])
    out = {service for service in stack.services if stack.connects(service, another_machine.address, port)}
    assert out == {"alertmanager", "caddy"}


def test_the_engine_has_no_route_beyond_its_own_network(stack: Stack) -> None:
    routes = json.loads(
        stack.run("nsenter", f"--net=/proc/{stack.pid('vllm')}/ns/net", "ip", "-j", "route").stdout
    )
    assert [route["dst"] for route in routes if route["dst"] == "default"] == []
    assert len(routes) == 1


def test_the_engine_cannot_reach_what_listens_on_the_host(stack: Stack) -> None:
    """The host's own address on each network of the stack, where it has one."""
    hosts = [
        config["Gateway"]
        for name in stack.config["networks"]
        for network in json.loads(stack.run("docker", "network", "inspect", f"{stack.project}_{name}").stdout)
        for config in network["IPAM"]["Config"]
        if config.get("Gateway")
    ]
    assert hosts
    assert [host for host in hosts if stack.connects("vllm", host, stack.ports["HTTPS_PORT"])] == []


def test_the_engine_resolves_its_neighbours_names_and_no_others(stack: Stack) -> None:
    """A name that is asked for would reach whoever answers for it, whatever the network lets through."""
    outside = stack.environment["RESOLVABLE_NAME"]

    def resolves(service: str, name: str) -> bool:
        asked = ("docker", "compose", "exec", "-T", service, "getent", "hosts", name)
        return stack.run(*asked, check=False).returncode == 0

    assert resolves("caddy", outside)
    assert resolves("vllm", "gateway")
    assert not resolves("vllm", outside)


def test_the_engine_on_the_loopback_port_wants_its_key(stack: Stack) -> None:
    key = (stack.home / "secrets" / "engine_api_key").read_text().strip()
    url = f"http://127.0.0.1:{stack.ports['VLLM_PORT']}/v1/models"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, timeout=10)
    with refused.value as answered:
        assert answered.code == 401
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        assert json.load(reply)["data"]


def test_prometheus_and_alertmanager_answer_on_their_loopback_ports(stack: Stack) -> None:
    assert b"Ready" in stack.get("PROMETHEUS_PORT", "/-/ready")
    assert stack.get("ALERTMANAGER_PORT", "/-/ready") == b"OK"


@pytest.mark.parametrize("port", [8000, 9090, 9093])
def test_the_forwarder_serves_no_container(port: int, stack: Stack) -> None:
    """It stands on every network that it forwards to, and must not be a way from one into another."""
    code = (
        "import sys, urllib.request as u\n"
        "request = u.Request(sys.argv[1], headers={'Host': f'localhost:{sys.argv[2]}'})\n"
        "print(u.urlopen(request, timeout=3).status)"
    )
    path = "/health" if port == 8000 else "/-/ready"
    for service, networks in (("vllm", ["engine"]), ("gateway", ["engine", "metrics"])):
        for network in networks:
            url = f"http://{stack.addresses('loopback')[network]}:{port}{path}"
            asked = ("docker", "compose", "exec", "-T", service, "python", "-c", code, url, str(port))
            done = stack.run(*asked, check=False)
            assert done.returncode != 0, done.stdout
            assert "Remote end closed connection" in done.stderr


@pytest.mark.parametrize(
    "path",
    [
        "/metrics", "/admin/keys", "/health", "/docs", "/openapi.json", "/detokenize", "/v1/../metrics",
        "/v1/load_lora_adapter", "//v1/models", "/%76%31/models", "/grafana/metrics", "/config/",
        "/api/v1/query?query=up",
    ],
)  # fmt: skip
def test_caddy_leads_to_nothing_but_the_api_and_grafana(
    path: str, stack: Stack, trust: ssl.SSLContext
) -> None:
    https = HTTPSConnection("localhost", stack.ports["HTTPS_PORT"], context=trust, timeout=10)
    with closing(https) as connection:
        connection.putrequest("GET", path)
        connection.endheaders()
        reply = connection.getresponse()
        body = reply.read()
    assert reply.status in {404, 405}, body
    assert json.loads(body)["error"]["code"] in {"path_not_found", "method_not_allowed"}
