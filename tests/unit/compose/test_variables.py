import itertools
import re

import pytest

from gateway.settings import ENV_PREFIX, Settings
from tests.unit.compose.files import CADDY_VARIABLE, COMPOSE_FILES, ROOT, example, services, variables

# Compose reads it itself, before any file.
COMPOSES_OWN = {"COMPOSE_FILE"}
# Fixed by the stack: addresses inside a container, and what only tests change.
FIXED = {
    "HOST",
    "PORT",
    "METRICS_PORT",
    "ADMIN_PORT",
    "DATA_DIR",
    "SECRETS_DIR",
    "ENGINE_PROFILE",
    "UPSTREAMS_FILE",
    "PLANS_FILE",
    "READY_FILE",
}
# What one gateway does without, and several need.
SCALE = {"DATABASE_URL", "VALKEY_URL", "REPLICAS"}


def compose_variables() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for file in COMPOSE_FILES:
        for name, defaults in variables((ROOT / file).read_text()).items():
            found.setdefault(name, set()).update(defaults)
    return found


def caddy_variables(name: str) -> set[str]:
    text = "".join(
        path.read_text() for path in (ROOT / "caddy" / name, *(ROOT / "caddy/tls").glob("*.caddy"))
    )
    return {match["name"] for match in CADDY_VARIABLE.finditer(text)}


def test_every_variable_of_the_compose_files_is_in_the_example() -> None:
    assert set(compose_variables()) <= set(example())


def test_every_variable_of_the_example_is_used() -> None:
    elsewhere = "".join(path.read_text() for path in (ROOT / "ops").rglob("*.py"))
    unused = set(example()) - set(compose_variables()) - COMPOSES_OWN
    assert {name for name in unused if not re.search(rf"\b{name}\b", elsewhere)} == set()


@pytest.mark.parametrize("name", sorted(compose_variables()))
def test_a_variable_has_one_default_and_the_example_shows_it(name: str) -> None:
    defaults = compose_variables()[name]
    assert len(defaults) <= 1
    # /dev/null stands for a file that nobody has named; a named volume for a directory that nobody has.
    shown = {default if default not in {"/dev/null", "models"} else "" for default in defaults}
    assert shown <= {example()[name]}


@pytest.mark.parametrize("name", ["Caddyfile", "loopback.Caddyfile"])
def test_a_variable_of_caddys_is_set_by_compose_or_has_a_default_for_the_stack(name: str) -> None:
    service = services()["caddy" if name == "Caddyfile" else "loopback"]
    text = "".join(
        path.read_text() for path in [ROOT / "caddy" / name, *(ROOT / "caddy/tls").glob("*.caddy")]
    )
    without_default = {match["name"] for match in CADDY_VARIABLE.finditer(text) if match["default"] is None}
    assert without_default <= set(service["environment"]) | {"ACME_EMAIL"}
    assert set(service["environment"]) <= caddy_variables(name)


def test_every_variable_of_the_example_has_a_line_of_meaning_and_none_is_named_twice() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    named = [line for line in lines if re.match(r"(# )?[A-Z][A-Z0-9_]*=", line)]
    assert len(named) == len(example())
    for before, line in itertools.pairwise(lines):
        if line in named:
            assert re.match(r"# (?!----)", before), line
            assert before not in named, line


def test_the_example_holds_no_secret() -> None:
    for name, value in example().items():
        if re.search(r"(^|_)(KEY|TOKEN|PASSWORD|SECRET)", name) and not re.search(r"TOKENS|FILE", name):
            assert value == "", name


def test_the_gateway_is_passed_every_setting_with_its_own_default() -> None:
    environment: dict[str, str] = {}
    for file in COMPOSE_FILES:
        environment |= services(file).get("gateway", {}).get("environment", {})
    settings = {name.upper(): field for name, field in Settings.model_fields.items()}
    assert {name.removeprefix(ENV_PREFIX) for name in environment} == set(settings) - FIXED
    for name, value in environment.items():
        if name.removeprefix(ENV_PREFIX) in SCALE or ":?" in value:
            continue
        (variable,) = variables(value)
        (default,) = variables(value)[variable]
        if variable != name:  # GATEWAY_TRUSTED_PROXIES is the edge network's subnet
            continue
        assert default == shown(settings[name.removeprefix(ENV_PREFIX)].default), name


def shown(default: object) -> str:
    """A setting's default as it stands in an environment."""
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return "" if default is None else str(default)


def test_caddys_cap_is_the_gateways() -> None:
    environments = [
        services()[name]["environment"]["GATEWAY_MAX_BODY_BYTES"] for name in ("caddy", "gateway")
    ]
    assert environments[0] == environments[1]
    assert "max_size {$GATEWAY_MAX_BODY_BYTES:" in (ROOT / "caddy/Caddyfile").read_text()
