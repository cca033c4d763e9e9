import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.gateway.caddy.process import ROOT, Caddy, caddy, running_caddy, site_environment

LAN_ADDRESS = "192.0.2.10"
NAMES = ("localhost", "gpu.lan", LAN_ADDRESS)


@pytest.fixture(scope="module")
def own_certificate(site: Caddy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate for localhost and its key, which another authority has made."""
    directory = tmp_path_factory.mktemp("own")
    issued = site.data / "caddy/certificates/local/localhost"
    shutil.copy(issued / "localhost.crt", directory / "cert.pem")
    shutil.copy(issued / "localhost.key", directory / "key.pem")
    return directory


@pytest.fixture(scope="module")
def lan_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caddy]:
    """A site with several names, one of them an address that no interface of this machine has."""
    env = site_environment(
        "127.0.0.1:1", "127.0.0.1:1", SITE_ADDRESS=", ".join(NAMES), SITE_DEFAULT_ADDRESS=LAN_ADDRESS
    )
    data = tmp_path_factory.mktemp("lan")
    with running_caddy("Caddyfile", env, data, health_port=int(env["CADDY_METRICS_PORT"])) as running:
        yield running


@pytest.mark.parametrize("mode", ["internal", "acme", "files"])
@pytest.mark.parametrize("more", [{}, {"ACME_EMAIL": "ops@example.com"}], ids=["no e-mail", "e-mail"])
def test_every_tls_mode_is_a_valid_configuration(
    tmp_path: Path, own_certificate: Path, mode: str, more: dict[str, str]
) -> None:
    env = site_environment(
        "gateway:8080", "grafana:3000", TLS_MODE=mode, CADDY_TLS_DIR=str(own_certificate), **more
    )
    config = str(ROOT / "caddy/Caddyfile")
    checked = caddy("validate", "--config", config, "--adapter", "caddyfile", env=env, data=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "Valid configuration" in checked.stdout + checked.stderr


def test_a_tls_mode_that_does_not_exist_is_refused_by_name(tmp_path: Path) -> None:
    env = site_environment("gateway:8080", "grafana:3000", TLS_MODE="letsencrypt")
    config = str(ROOT / "caddy/Caddyfile")
    checked = caddy("validate", "--config", config, "--adapter", "caddyfile", env=env, data=tmp_path)
    assert checked.returncode != 0
    assert "letsencrypt.caddy" in checked.stderr


def test_acme_asks_the_public_authority_and_forces_https(tmp_path: Path) -> None:
    env = site_environment("gateway:8080", "grafana:3000", TLS_MODE="acme", SITE_ADDRESS="llm.example.com")
    config = str(ROOT / "caddy/Caddyfile")
    adapted = caddy("adapt", "--config", config, "--adapter", "caddyfile", env=env, data=tmp_path)
    assert "https://acme-v02.api.letsencrypt.org/directory" in adapted.stdout
    assert "Strict-Transport-Security" in adapted.stdout


@pytest.mark.parametrize("name", NAMES)
def test_each_name_and_address_has_a_certificate_of_the_internal_authority(
    lan_site: Caddy, name: str
) -> None:
    with socket.create_connection(("127.0.0.1", lan_site.https)) as plain:
        with lan_site.trust.wrap_socket(plain, server_hostname=name) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 404 ")


def test_a_client_that_names_no_host_gets_the_addresss_certificate(lan_site: Caddy) -> None:
    # What happens to https://192.0.2.10/: no name is sent for an address, and behind Docker's port forwarding
    # Caddy can't see which address was meant.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", lan_site.https)) as plain:
        with context.wrap_socket(plain) as connection:
            served = connection.getpeercert(binary_form=True)
    assert served
    assert ssl.DER_cert_to_PEM_cert(served)
    assert socket.inet_aton(LAN_ADDRESS) in served


def test_the_internal_authority_does_not_force_https_on_a_host(lan_site: Caddy) -> None:
    with lan_site.client() as client:
        assert "strict-transport-security" not in client.get("/").headers


def test_own_files_are_served(site: Caddy, tmp_path: Path, own_certificate: Path) -> None:
    env = site_environment("127.0.0.1:1", "127.0.0.1:1", TLS_MODE="files", CADDY_TLS_DIR=str(own_certificate))
    with running_caddy("Caddyfile", env, tmp_path, health_port=int(env["CADDY_METRICS_PORT"])) as running:
        assert httpx2.get(f"{running.url}/", verify=site.trust).status_code == 404
