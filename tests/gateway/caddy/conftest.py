from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.gateway.caddy.backend import Backend, running_backend
from tests.gateway.caddy.process import Caddy, running_caddy, site_environment


@pytest.fixture(scope="session")
def one_gateway() -> Iterator[Backend]:
    with running_backend() as backend:
        yield backend


@pytest.fixture(scope="session")
def one_grafana() -> Iterator[Backend]:
    with running_backend() as backend:
        yield backend


@pytest.fixture
def gateway(one_gateway: Backend) -> Backend:
    one_gateway.reset()
    return one_gateway


@pytest.fixture
def grafana(one_grafana: Backend) -> Backend:
    one_grafana.reset()
    return one_grafana


@pytest.fixture(scope="session")
def site(
    one_gateway: Backend, one_grafana: Backend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Caddy]:
    env = site_environment(one_gateway.address, one_grafana.address)
    data: Path = tmp_path_factory.mktemp("caddy")
    with running_caddy("Caddyfile", env, data, health_port=int(env["CADDY_METRICS_PORT"])) as caddy:
        yield caddy


@pytest.fixture
def client(site: Caddy) -> Iterator[httpx2.Client]:
    with site.client() as client:
        yield client
