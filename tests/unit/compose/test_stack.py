import re
from typing import Any

import pytest

from gateway.settings import Settings
from tests.unit.compose.files import COMPOSE_FILES, ROOT, load, services, variables

SERVICES = services()
NETWORKS = load("compose.yaml")["networks"]
ONE_SHOTS = {"engine-dirs", "model"}
LASTING = {name: service for name, service in SERVICES.items() if name not in ONE_SHOTS}
EVERY = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES.keys())
EVERY_LASTING = pytest.mark.parametrize("service", LASTING.values(), ids=LASTING.keys())


def seconds(duration: str) -> int:
    plain = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", duration)
    assert plain.endswith("s")
    return int(plain[:-1])


def is_internal(network: str) -> bool:
    return bool((NETWORKS[network] or {}).get("internal"))


def test_every_piece_of_the_design_is_there() -> None:
    assert set(SERVICES) == {
        "vllm",
        "gateway",
        "caddy",
        "prometheus",
        "alertmanager",
        "grafana",
        "gpu-exporter",
        "node-exporter",
        "loopback",
        "engine-dirs",
        "model",
    }


@EVERY
def test_a_service_is_hardened(service: dict[str, Any]) -> None:
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["init"] is True
    assert service["mem_limit"]
    assert service["pids_limit"] > 0
    assert "privileged" not in service
    assert service.get("network_mode") in {None, "none"}
    assert not {"pid", "ipc", "devices"} & set(service)


@EVERY
def test_a_services_log_is_capped(service: dict[str, Any]) -> None:
    assert service["logging"]["driver"] == "json-file"
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_a_numeric_user_that_is_not_root(name: str) -> None:
    user = SERVICES[name]["user"]
    assert re.fullmatch(r"\d+:\d+", user)
    # Sets owners, which only root can; it has no network and ends at once.
    assert user.startswith("0:") is (name == "engine-dirs")


def test_what_is_added_to_no_capabilities_is_known() -> None:
    added = {name: set(service["cap_add"]) for name, service in SERVICES.items() if "cap_add" in service}
    assert added == {
        "engine-dirs": {"CHOWN", "DAC_READ_SEARCH"},
        "caddy": {"NET_BIND_SERVICE"},
        "loopback": {"NET_BIND_SERVICE"},
    }


@EVERY_LASTING
def test_what_stays_up_is_started_again_and_watched(service: dict[str, Any]) -> None:
    assert service["restart"] == "unless-stopped"
    healthcheck = service["healthcheck"]
    assert healthcheck["test"][0] == "CMD"
    assert {"interval", "timeout", "retries", "start_period", "start_interval"} <= set(healthcheck)
    assert service["stop_grace_period"]


@pytest.mark.parametrize("name", sorted(ONE_SHOTS))
def test_what_runs_once_is_not_started_again(name: str) -> None:
    assert SERVICES[name]["restart"] == "no"


@pytest.mark.parametrize("name", ["gateway", "vllm", "caddy"])
def test_a_stop_waits_longer_than_the_drain(name: str) -> None:
    drain = SERVICES["gateway"]["environment"]["GATEWAY_DRAIN_SECONDS"]
    assert seconds(SERVICES[name]["stop_grace_period"]) > int(*variables(drain)["GATEWAY_DRAIN_SECONDS"])


def test_only_caddy_publishes_on_all_interfaces() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"caddy", "loopback"}
    assert [port.rpartition("}:")[2] for port in published["caddy"]] == ["80/tcp", "443/tcp", "443/udp"]
    assert all(port.startswith("127.0.0.1:") for port in published["loopback"])
    assert [port.rpartition(":")[2] for port in published["loopback"]] == ["8000", "9090", "9093"]


def test_the_networks_without_a_way_out_are_internal() -> None:
    assert {name for name in NETWORKS if is_internal(name)} == {"edge", "engine", "metrics"}
    for name in ("edge", "engine", "metrics"):
        mode = NETWORKS[name]["driver_opts"]["com.docker.network.bridge.gateway_mode_ipv4"]
        assert mode == "${INTERNAL_GATEWAY_MODE:-isolated}"
    masquerade = NETWORKS["loopback"]["driver_opts"]["com.docker.network.bridge.enable_ip_masquerade"]
    assert masquerade == "false"


def test_each_service_is_on_the_networks_that_it_needs() -> None:
    assert {name: set(service.get("networks", [])) for name, service in SERVICES.items()} == {
        "vllm": {"engine"},
        "gateway": {"edge", "engine", "metrics"},
        "caddy": {"edge", "metrics", "egress"},
        "loopback": {"engine", "metrics", "loopback"},
        "prometheus": {"metrics", "engine"},
        "alertmanager": {"metrics", "egress"},
        "grafana": {"edge", "metrics"},
        "gpu-exporter": {"metrics"},
        "node-exporter": {"metrics"},
        "model": {"egress"},
        "engine-dirs": set(),
    }


@EVERY
def test_a_default_route_is_never_a_matter_of_luck(service: dict[str, Any]) -> None:
    assert len([name for name in service.get("networks", []) if not is_internal(name)]) <= 1


def test_images_are_named_in_one_place_and_pinned_by_tag() -> None:
    images = load("compose.yaml")["x-images"]
    for image in images.values():
        name, tag = re.sub(r"\$\{\w+:-(.*)\}", r"\1", image).rsplit(":", 1)
        assert name
        assert re.fullmatch(r"v?\d+\.\d+\.\d+(-alpine)?", tag), image
    text = (ROOT / "compose.yaml").read_text()
    assert re.findall(r"^ +image: (?!\*)", text, flags=re.MULTILINE) == []
    assert {service["image"] for service in SERVICES.values()} == set(images.values())


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_no_secret_is_in_an_environment_or_a_command(file: str) -> None:
    for name, service in services(file).items():
        environment = dict(service.get("environment") or {})
        secret_like = re.compile(r"(KEY|TOKEN|PASSWORD|PEPPER|SECRET)$")
        assert not [key for key in environment if secret_like.search(key)], name
        words = " ".join(
            [*map(str, service.get("command") or []), *map(str, service.get("entrypoint") or [])]
        )
        assert "--api-key " not in words


def test_secrets_are_files_that_setup_makes() -> None:
    secrets = load("compose.yaml")["secrets"]
    assert {name: entry["file"] for name, entry in secrets.items()} == {
        name: f"./secrets/{name}"
        for name in (
            "engine_api_key",
            "key_pepper",
            "admin_token",
            "grafana_admin_password",
            "alertmanager.yml",
        )
    }
    used = {name for service in SERVICES.values() for name in service.get("secrets", [])}
    assert used == set(secrets)


def test_who_may_read_which_secret() -> None:
    assert {name: set(service["secrets"]) for name, service in SERVICES.items() if "secrets" in service} == {
        "vllm": {"engine_api_key"},
        "gateway": {"engine_api_key", "key_pepper", "admin_token"},
        "alertmanager": {"alertmanager.yml"},
        "grafana": {"grafana_admin_password"},
    }


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_a_file_that_is_mounted_exists(file: str) -> None:
    for service in services(file).values():
        for volume in service.get("volumes", []):
            if isinstance(volume, dict):
                assert volume["bind"] == {"create_host_path": False}
                assert volume["read_only"] is True
                source = re.sub(r"\$\{GATEHOUSE_PROFILE:\?[^}]*\}", "single-3090-awq", volume["source"])
                assert (ROOT / source).exists(), source


def test_the_engine_is_offline_and_never_in_development_mode() -> None:
    environment = SERVICES["vllm"]["environment"]
    assert environment["HF_HUB_OFFLINE"] == environment["TRANSFORMERS_OFFLINE"] == "1"
    assert environment["VLLM_NO_USAGE_STATS"] == environment["DO_NOT_TRACK"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in environment
    text = "".join((ROOT / name).read_text() for name in (*COMPOSE_FILES, "vllm/entrypoint.sh"))
    assert "DEV_MODE" not in text


def test_the_engine_loads_compiled_kernels_from_where_it_may_write() -> None:
    vllm = SERVICES["vllm"]
    (temporary,) = vllm["tmpfs"]
    assert temporary == "/tmp:exec,mode=1777"  # noqa: S108 - a path in the container
    caches = [value for name, value in vllm["environment"].items() if re.search("CACHE|HOME|WORKSPACE", name)]
    assert len(caches) >= 8
    assert all(value.startswith("/cache") for value in caches)
    assert "vllm-cache:/cache" in vllm["volumes"]
    assert "${MODEL_DIR:-models}:/models:ro" in vllm["volumes"]


def test_the_plans_are_mounted_as_a_directory_where_the_gateway_looks_for_them() -> None:
    # A file that an editor replaces would stay the old one in the container.
    mounts = [mount for mount in SERVICES["gateway"]["volumes"] if isinstance(mount, dict)]
    sources = {mount["target"]: mount["source"] for mount in mounts}
    looked_for = Settings.read({}).plans_file
    assert sources[str(looked_for.parent)] == "./gateway/config"
    assert (ROOT / "gateway/config" / looked_for.name).is_file()


def test_the_gateway_does_not_wait_until_the_engine_is_ready() -> None:
    assert SERVICES["gateway"]["depends_on"] == {"vllm": {"condition": "service_started"}}
    assert SERVICES["caddy"]["depends_on"]["gateway"] == {"condition": "service_healthy"}


def test_the_gateway_believes_the_edge_network_alone() -> None:
    (subnet,) = NETWORKS["edge"]["ipam"]["config"]
    assert SERVICES["gateway"]["environment"]["GATEWAY_TRUSTED_PROXIES"] == subnet["subnet"]


def test_grafana_is_behind_its_login_and_calls_nobody() -> None:
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana_admin_password"
    for name in (
        "GF_AUTH_ANONYMOUS_ENABLED",
        "GF_USERS_ALLOW_SIGN_UP",
        "GF_ANALYTICS_REPORTING_ENABLED",
        "GF_ANALYTICS_CHECK_FOR_UPDATES",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES",
        "GF_NEWS_NEWS_FEED_ENABLED",
    ):
        assert environment[name] == "false"


def test_a_second_gpu_gives_each_engine_one_and_a_cache_of_its_own() -> None:
    override = services("compose.gpu2.yaml")
    gpus = {
        name: override[name]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name in ("vllm", "vllm-replica")
    }
    assert gpus == {"vllm": ["0"], "vllm-replica": ["1"]}
    assert override["vllm-replica"]["volumes"] == ["vllm-replica-cache:/cache"]
    assert override["vllm-replica"]["extends"] == {"file": "compose.yaml", "service": "vllm"}


def test_the_stand_in_takes_nothing_but_the_engine_and_the_gpu() -> None:
    override = services("compose.standin.yaml")
    assert set(override) == {"vllm", "gpu-exporter"}
    assert override["gpu-exporter"] == {"profiles": ["gpu"]}
