"""compose.scale.yaml and compose.jwt.yaml: what several gateways share, and what lets tokens in."""

import re
from typing import Any

import pytest

from gateway.settings import Settings
from tests.unit.compose.files import ROOT, load, services

SCALE = load("compose.scale.yaml")
STORES = {name: SCALE["services"][name] for name in ("postgres", "valkey")}
EVERY = pytest.mark.parametrize("service", STORES.values(), ids=STORES.keys())
SINGLE = services()


@EVERY
def test_a_store_is_hardened_as_the_rest_of_the_stack(service: dict[str, Any]) -> None:
    for name in ("cap_drop", "security_opt", "read_only", "init", "logging", "restart"):
        assert service[name] == SINGLE["gateway"][name], name
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert "cap_add" not in service
    assert {"interval", "timeout", "retries", "start_period", "start_interval"} <= set(service["healthcheck"])
    assert service["stop_grace_period"]


@EVERY
def test_only_the_gateways_reach_a_store(service: dict[str, Any]) -> None:
    assert service["networks"] == ["state"]
    assert "ports" not in service
    on_it = {name for name, other in SCALE["services"].items() if "state" in other.get("networks", [])}
    assert on_it == {"gateway", *STORES}
    internal = load("compose.yaml")["networks"]["metrics"]
    assert SCALE["networks"]["state"] == internal


def test_images_are_pinned_by_tag_and_named_in_one_place() -> None:
    images = SCALE["x-images"]
    for image in images.values():
        assert re.fullmatch(r"[a-z/]+:\d+\.\d+(\.\d+)?-alpine", image), image
    assert {service["image"] for service in STORES.values()} == set(images.values())
    text = (ROOT / "compose.scale.yaml").read_text()
    assert re.findall(r"^ +image: (?!\*)", text, flags=re.MULTILINE) == []


def test_each_store_has_a_password_of_its_own_in_a_file_that_setup_makes() -> None:
    assert STORES["postgres"]["secrets"] == ["database_password"]
    assert STORES["valkey"]["secrets"] == ["valkey_password"]
    assert SCALE["services"]["gateway"]["secrets"] == ["database_password", "valkey_password"]
    assert {name: entry["file"] for name, entry in SCALE["secrets"].items()} == {
        name: f"./secrets/{name}" for name in ("database_password", "valkey_password")
    }
    assert STORES["postgres"]["environment"]["POSTGRES_PASSWORD_FILE"] == "/run/secrets/database_password"
    (script,) = STORES["valkey"]["command"]
    assert "requirepass $$(cat /run/secrets/valkey_password)" in script
    # In place of the shell, so that a stop reaches it.
    assert script.startswith("exec valkey-server - <<")


def test_what_a_store_keeps_is_on_a_volume() -> None:
    assert STORES["postgres"]["volumes"] == ["postgres-data:/var/lib/postgresql/data"]
    assert STORES["valkey"]["volumes"] == ["valkey-data:/data"]
    assert set(SCALE["volumes"]) == {"postgres-data", "valkey-data"}


def test_as_many_gateways_run_as_share_the_limits() -> None:
    gateway = SCALE["services"]["gateway"]
    assert gateway["deploy"]["replicas"] == gateway["environment"]["GATEWAY_REPLICAS"]
    assert "ports" not in SINGLE["gateway"]
    assert "container_name" not in SINGLE["gateway"]


def test_the_gateways_find_the_stores_and_outlive_them() -> None:
    gateway = SCALE["services"]["gateway"]
    settings = Settings.read(
        {name: value for name, value in gateway["environment"].items() if name.endswith("_URL")}
    )
    assert settings.database_url == "postgresql://gatehouse@postgres:5432/gatehouse"
    assert settings.valkey_url == "valkey://valkey:6379/0"
    postgres = STORES["postgres"]["environment"]
    assert (postgres["POSTGRES_USER"], postgres["POSTGRES_DB"]) == ("gatehouse", "gatehouse")
    assert gateway["depends_on"] == {name: {"condition": "service_started"} for name in STORES}


def test_valkey_forgets_nothing_that_counts() -> None:
    (script,) = STORES["valkey"]["command"]
    assert "maxmemory-policy noeviction" in script
    assert "appendonly yes" in script


def test_tokens_open_the_way_to_the_issuer_and_to_nothing_else() -> None:
    gateway = services("compose.jwt.yaml")["gateway"]
    assert gateway["networks"] == ["egress"]
    assert gateway["secrets"] == ["jwt_secret"]
    networks = load("compose.yaml")["networks"]
    outward = [name for name in SINGLE["gateway"]["networks"] if not networks[name].get("internal")]
    assert outward == []  # so that egress alone carries the default route
    assert networks["egress"]["driver_opts"] == {"com.docker.network.bridge.enable_icc": "false"}
    for name in ("ISSUER", "AUDIENCE"):
        assert ":?" in gateway["environment"][f"GATEWAY_JWT_{name}"]
