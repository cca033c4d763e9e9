"""What the gateway is configured with: read once, from what is handed over alone,
and refused with one line that says the fix.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from gateway.settings import RETIRED, Configuration, ConfigurationError, Settings, read_secret

STRONG = "b2f7Kq9xW0sLz4TgYv6HnR1cJd8MpE3u"
PROFILE = {"served-model-name": ["model-a", "model-b"], "max-model-len": 8192, "max-num-seqs": 4, "other": 1}
UPSTREAMS = {"upstreams": [{"name": "vllm", "url": "http://vllm:8000/"}]}

Load = Callable[..., Configuration]


@pytest.fixture
def secrets_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "secrets"
    directory.mkdir()
    for name in ("key_pepper", "admin_token", "engine_api_key"):
        (directory / name).write_text(f"{STRONG}{name}\n")
    return directory


@pytest.fixture
def load(tmp_path: Path, secrets_dir: Path) -> Load:
    """Loads a whole configuration whose files are right, except for what the test gives or has changed."""

    def loaded(
        *, profile: object = PROFILE, upstreams: object = UPSTREAMS, **variables: str
    ) -> Configuration:
        for name, content in (("profile.yaml", profile), ("upstreams.yaml", upstreams)):
            raw = content if isinstance(content, bytes) else yaml.safe_dump(content).encode()
            (tmp_path / name).write_bytes(raw)
        return Configuration.load(
            {
                "PATH": "/bin",
                "GATEWAY_SECRETS_DIR": str(secrets_dir),
                "GATEWAY_ENGINE_PROFILE": str(tmp_path / "profile.yaml"),
                "GATEWAY_UPSTREAMS_FILE": str(tmp_path / "upstreams.yaml"),
                **variables,
            }
        )

    return loaded


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        call()
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_a_right_configuration_is_loaded_whole(load: Load) -> None:
    configuration = load(GATEWAY_MODEL_ALIASES='{"gpt-4o": "model-a"}', GATEWAY_PORT="0")
    assert configuration.settings.port == 0
    assert configuration.settings.model_aliases == {"gpt-4o": "model-a"}
    assert configuration.profile.served_model_name == ("model-a", "model-b")
    assert configuration.profile.max_model_len == 8192
    assert configuration.upstreams[0].base == "http://vllm:8000"
    assert configuration.secrets.admin_token == f"{STRONG}admin_token"
    assert configuration.secrets.engine_keys == {"vllm": f"{STRONG}engine_api_key"}


def test_defaults_are_the_documented_ones() -> None:
    assert Settings.read({}).model_dump() == {
        "host": "0.0.0.0",
        "port": 8080,
        "metrics_port": 9100,
        "admin_port": 8081,
        "data_dir": Path("/data"),
        "secrets_dir": Path("/run/secrets"),
        "engine_profile": Path("/etc/gatehouse/profile.yaml"),
        "upstreams_file": Path("/etc/gatehouse/upstreams.yaml"),
        "plans_file": Path("/etc/gatehouse/config/plans.yaml"),
        "model_aliases": {},
        "max_body_bytes": 1_048_576,
        "max_inflight_body_bytes": 67_108_864,
        "body_timeout": 30,
        "connect_timeout": 5,
        "first_byte_timeout": 300,
        "idle_timeout": 60,
        "total_timeout": 1800,
        "drain_seconds": 60,
        "optional_routes": (),
        "database_url": None,
        "valkey_url": None,
        "valkey_timeout": 0.1,
        "replicas": 1,
        "snapshot_max_age": 86_400,
        "failed_logins_per_minute": 30,
        "jwt_issuer": None,
        "jwt_audience": None,
        "jwt_algorithms": ("RS256", "ES256"),
        "jwt_jwks_url": None,
        "jwt_leeway": 30,
        "jwt_tenant_claim": "tenant",
        "jwt_plan_claim": "plan",
        "jwt_scopes_claim": "scope",
        "jwt_default_tenant": None,
        "trusted_proxies": (),
        "ready_file": None,
        "log_level": "info",
    }


def test_only_the_environment_that_is_handed_over_is_read() -> None:
    code = "from gateway.settings import Settings; print(Settings.read({}).port)"
    environ = os.environ | {"GATEWAY_PORT": "1234"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=True)
    assert done.stdout == b"8080\n"


def test_settings_cannot_be_changed() -> None:
    settings = Settings.read({})
    with pytest.raises(ValidationError, match="frozen"):
        setattr(settings, "port", 1)  # noqa: B010 - mypy knows that it cannot be done


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("GATEWAY_MAX_BODY_BYTE", "GATEWAY_MAX_BODY_BYTES"),
        ("GATEWAY_PORTS", "GATEWAY_PORT"),
        ("GATEWAY_FAILED_LOGIN_PER_MINUTE", "GATEWAY_FAILED_LOGINS_PER_MINUTE"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_one_that_was_meant(name: str, suggestion: str) -> None:
    message = refusal(lambda: Settings.read({name: "1"}))
    assert message.startswith(f"{name} is not a setting")
    assert f"did you mean {suggestion}?" in message


@pytest.mark.parametrize("name", sorted(RETIRED))
def test_a_setting_that_is_no_more_is_refused_with_the_place_of_what_it_said(name: str) -> None:
    message = refusal(lambda: Settings.read({name: "1"}))
    assert message.startswith(f"{name} is no longer a setting.")
    assert "gateway/config/plans.yaml" in message


def test_an_unknown_variable_that_resembles_none_is_refused_without_a_guess() -> None:
    message = refusal(lambda: Settings.read({"GATEWAY_ZZZ": "1"}))
    assert "did you mean" not in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GATEWAY_PORT", "eighty"),
        ("GATEWAY_PORT", "65536"),
        ("GATEWAY_PORT", "-1"),
        ("GATEWAY_MAX_BODY_BYTES", "0"),
        ("GATEWAY_IDLE_TIMEOUT", "0"),
        ("GATEWAY_IDLE_TIMEOUT", "inf"),
        ("GATEWAY_IDLE_TIMEOUT", "nan"),
        ("GATEWAY_MODEL_ALIASES", "a=b"),
        ("GATEWAY_MODEL_ALIASES", "[]"),
        ("GATEWAY_MODEL_ALIASES", '{"a": 1}'),
        ("GATEWAY_TRUSTED_PROXIES", "10.0.0.1/8"),
        ("GATEWAY_TRUSTED_PROXIES", "caddy"),
        ("GATEWAY_LOG_LEVEL", "loud"),
        ("GATEWAY_DATABASE_URL", "mysql://db/gatehouse"),
        ("GATEWAY_DATABASE_URL", "postgresql://gatehouse:hunter2@db/gatehouse"),
        ("GATEWAY_VALKEY_URL", "valkey:6379"),
        ("GATEWAY_VALKEY_URL", "valkey://:hunter2@valkey:6379"),
        ("GATEWAY_VALKEY_TIMEOUT", "0"),
        ("GATEWAY_REPLICAS", "0"),
        ("GATEWAY_SNAPSHOT_MAX_AGE", "forever"),
        ("GATEWAY_FAILED_LOGINS_PER_MINUTE", "0"),
        ("GATEWAY_JWT_ALGORITHMS", "none"),
        ("GATEWAY_JWT_ALGORITHMS", "RS256,EdDSA"),
        ("GATEWAY_JWT_JWKS_URL", "http://issuer.example.net/keys"),
        ("GATEWAY_JWT_JWKS_URL", "ftp://issuer.example.net/keys"),
        ("GATEWAY_JWT_JWKS_URL", "https://"),
        ("GATEWAY_JWT_LEEWAY", "-1"),
    ],
)
def test_a_wrong_value_is_refused_with_its_variables_name(name: str, value: str) -> None:
    assert name in refusal(lambda: Settings.read({name: value}))


def test_a_password_in_a_url_is_not_shown() -> None:
    message = refusal(lambda: Settings.read({"GATEWAY_DATABASE_URL": "postgresql://u:hunter2@db/x"}))
    assert "hunter2" not in message
    assert "secret file" in message


def test_an_empty_value_is_none() -> None:
    empty = {"GATEWAY_DATABASE_URL": "", "GATEWAY_READY_FILE": "", "GATEWAY_PORT": ""}
    assert Settings.read(empty) == Settings.read({})


def test_a_list_is_separated_by_commas() -> None:
    settings = Settings.read({"GATEWAY_OPTIONAL_ROUTES": "/v1/rerank, /v1/score,"})
    assert settings.optional_routes == ("/v1/rerank", "/v1/score")


TOKENS = {
    "GATEWAY_JWT_ISSUER": "https://issuer.example.net",
    "GATEWAY_JWT_AUDIENCE": "gatehouse",
    "GATEWAY_JWT_JWKS_URL": "https://issuer.example.net/keys",
}


@pytest.mark.parametrize("name", ["GATEWAY_JWT_AUDIENCE", "GATEWAY_JWT_JWKS_URL"])
def test_tokens_need_an_audience_and_where_their_keys_are(name: str) -> None:
    assert Settings.read(TOKENS).jwt_audience == "gatehouse"
    assert refusal(lambda: Settings.read({k: v for k, v in TOKENS.items() if k != name})).startswith(name)


def test_tokens_need_an_algorithm() -> None:
    assert "GATEWAY_JWT_ALGORITHMS" in refusal(
        lambda: Settings.read(TOKENS | {"GATEWAY_JWT_ALGORITHMS": ","})
    )


def test_keys_of_an_issuer_on_this_machine_may_come_unencrypted() -> None:
    local = "http://127.0.0.1:8000/keys"
    assert Settings.read(TOKENS | {"GATEWAY_JWT_JWKS_URL": local}).jwt_jwks_url == local


def test_trusted_proxies_are_networks_separated_by_commas() -> None:
    proxies = Settings.read({"GATEWAY_TRUSTED_PROXIES": "172.28.0.0/24, fd00::/8,10.1.2.3"}).trusted_proxies
    assert [str(network) for network in proxies] == ["172.28.0.0/24", "fd00::/8", "10.1.2.3/32"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "weak"),
        ("short", "weak"),
        ("ab" * 40, "weak"),
        ("CHANGE_ME_CHANGE_ME_CHANGE_ME_0123456789", "placeholder"),
        ("changeme-0123456789-abcdefghijklmnop", "placeholder"),
        ("<put 32 random characters here 0123456789>", "placeholder"),
        ("your_api_key_0123456789_abcdefghijklmnopqrstu", "placeholder"),
        ("example-0123456789-abcdefghijklmnopqrstuvw", "placeholder"),
        ("schlüssel-0123456789-abcdefghijklmnopqrstuvw", "ASCII"),
    ],
)
def test_a_missing_weak_or_placeholder_secret_is_refused_with_the_fix(
    secrets_dir: Path, content: str, problem: str
) -> None:
    (secrets_dir / "key_pepper").write_text(content, encoding="utf-8")
    message = refusal(lambda: read_secret(secrets_dir, "key_pepper"))
    assert problem in message
    assert "make setup" in message
    assert not content or content not in message


def test_a_secret_file_that_is_not_there_is_named_with_the_fix(secrets_dir: Path) -> None:
    message = refusal(lambda: read_secret(secrets_dir, "nothing"))
    assert str(secrets_dir / "nothing") in message
    assert "make setup" in message


def test_a_secret_that_this_user_may_not_read_says_so_for_setup_would_keep_it(secrets_dir: Path) -> None:
    (secrets_dir / "key_pepper").chmod(0o000)
    root = os.geteuid() == 0  # who may read everything
    if root:
        os.seteuid(65534)
    try:
        message = refusal(lambda: read_secret(secrets_dir, "key_pepper"))
    finally:
        if root:
            os.seteuid(0)
    assert "chmod 444 secrets/key_pepper" in message
    assert "make setup" not in message


@pytest.mark.parametrize("name", ["key_pepper", "admin_token", "engine_api_key"])
def test_each_secret_is_checked_at_start(load: Load, secrets_dir: Path, name: str) -> None:
    (secrets_dir / name).write_text("changeme")
    assert name in refusal(load)


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("database_password", {"GATEWAY_DATABASE_URL": "postgresql://u@db/gatehouse"}),
        ("valkey_password", {"GATEWAY_VALKEY_URL": "valkey://valkey:6379/0"}),
        ("jwt_secret", TOKENS | {"GATEWAY_JWT_ALGORITHMS": "HS256"}),
        ("jwt_secret", TOKENS | {"GATEWAY_JWT_ALGORITHMS": "ES256,HS512"}),
    ],
)
def test_a_secret_is_read_where_it_is_needed_alone(
    load: Load, secrets_dir: Path, name: str, variables: dict[str, str]
) -> None:
    assert getattr(load().secrets, name) is None
    assert name in refusal(lambda: load(**variables))
    (secrets_dir / name).write_text(STRONG)
    assert getattr(load(**variables).secrets, name) in {STRONG, STRONG.encode()}


def test_a_database_behind_a_socket_needs_no_password(load: Load) -> None:
    socket = "postgresql:///gatehouse?host=/run/postgresql&user=gatehouse"
    assert load(GATEWAY_DATABASE_URL=socket).secrets.database_password is None


def test_keys_derived_for_different_purposes_are_different(load: Load) -> None:
    secrets = load().secrets
    assert secrets.derived("a") == secrets.derived("a")
    assert len({secrets.derived("a"), secrets.derived("b"), secrets.key_pepper}) == 3
    assert len(secrets.derived("a")) == 32


def test_no_secret_shows_in_a_repr(load: Load) -> None:
    assert STRONG not in repr(load())


def test_an_alias_of_a_model_that_is_not_served_is_refused(load: Load) -> None:
    message = refusal(lambda: load(GATEWAY_MODEL_ALIASES='{"gpt-4o": "model-c"}'))
    assert "GATEWAY_MODEL_ALIASES" in message
    assert "'model-c'" in message
    assert "model-a, model-b" in message


def test_a_profile_may_name_one_model_as_plain_text(load: Load) -> None:
    assert load(profile=PROFILE | {"served-model-name": "one"}).profile.served_model_name == ("one",)


@pytest.mark.parametrize(
    "profile",
    [
        b"a: [",
        b"\xff\xfe",
        b"a: 2026-99-99",
        b"",
        b"- list",
        b"served-model-name: a\nmax-model-len: 1\nmax-model-len: 2\n",
        {"max-model-len": 1},
        PROFILE | {"served-model-name": []},
        PROFILE | {"max-model-len": 0},
        PROFILE | {"max-model-len": "long"},
    ],
)
def test_a_broken_profile_is_refused_with_the_files_name(load: Load, profile: object) -> None:
    assert "profile.yaml" in refusal(lambda: load(profile=profile))


@pytest.mark.parametrize(
    "upstreams",
    [
        b"upstreams: {",
        {"upstreams": []},
        {"upstreams": [{"name": "vllm"}]},
        {"upstreams": [{"name": "vllm", "url": "vllm:8000"}]},
        {"upstreams": [{"name": "v LLM", "url": "http://vllm"}]},
        {"upstreams": [{"name": "vllm", "url": "http://vllm", "key": "in here"}]},
        {"upstreams": [{"name": "vllm", "url": "http://a"}, {"name": "vllm", "url": "http://b"}]},
    ],
)
def test_a_broken_list_of_upstreams_is_refused_with_the_files_name(load: Load, upstreams: object) -> None:
    assert "upstreams.yaml" in refusal(lambda: load(upstreams=upstreams))


def test_a_file_that_is_not_there_is_named(load: Load, tmp_path: Path) -> None:
    assert "nowhere.yaml" in refusal(lambda: load(GATEWAY_ENGINE_PROFILE=str(tmp_path / "nowhere.yaml")))


def test_each_upstream_may_have_a_key_of_its_own(load: Load, secrets_dir: Path) -> None:
    (secrets_dir / "remote_key").write_text(f"{STRONG}remote")
    remote = {"name": "remote", "url": "https://gpu.example.net/base/", "key_file": "remote_key"}
    configuration = load(upstreams={"upstreams": [*UPSTREAMS["upstreams"], remote]})
    assert configuration.upstreams[1].base == "https://gpu.example.net/base"
    assert configuration.secrets.engine_keys["remote"] == f"{STRONG}remote"


@pytest.mark.parametrize("tenant", ["\u00fcnit", "-x", "x" * 101, "a\0b", "a\nb"])
def test_a_default_tenant_that_no_token_could_name_is_refused_at_the_start(tenant: str) -> None:
    with pytest.raises(ConfigurationError, match="GATEWAY_JWT_DEFAULT_TENANT"):
        Settings.read({"GATEWAY_JWT_DEFAULT_TENANT": tenant})
