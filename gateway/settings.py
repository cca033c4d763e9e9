"""The one settings object, read once from the environment, and what it points at: secret files, profile,
upstreams.
"""

import difflib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    HttpUrl,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from gateway.configfiles import ConfigurationError, first_problem, load_yaml, read_secret

__all__ = [
    "Configuration",
    "ConfigurationError",
    "EngineProfile",
    "Secrets",
    "Settings",
    "Upstream",
    "read_secret",
]

ENV_PREFIX = "GATEWAY_"
LOOPBACK = "127.0.0.1"

_OF_A_PLAN = "It stands in the plans file now (gateway/config/plans.yaml): plans, a plan's name,"
# Settings that are no more, and where what they said is said now.
RETIRED: Mapping[str, str] = MappingProxyType(
    {
        "GATEWAY_REQUESTS_PER_MINUTE": f"{_OF_A_PLAN} limits.requests_per_minute.",
        "GATEWAY_DEFAULT_MAX_TOKENS": f"{_OF_A_PLAN} output.default.",
        "GATEWAY_MAX_TOKENS_CAP": f"{_OF_A_PLAN} output.cap.",
        "GATEWAY_MAX_TOKENS_MODE": f"{_OF_A_PLAN} output.over_cap.",
    }
)

Network = IPv4Network | IPv6Network
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=0, le=65535)]


def _networks(value: object) -> object:
    if isinstance(value, str):
        return tuple(ip_network(part.strip()) for part in value.split(",") if part.strip())
    return value


def _words(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _without_password(*schemes: str) -> Callable[[str], str]:
    """Checks a server's URL: one of `schemes`, and no password, whose place is a secret file."""

    def check(url: str) -> str:
        if not url.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise ValueError(f"should begin with {schemes[0]}://")
        if urlsplit(url).password is not None:
            raise ValueError("a password's place is its secret file, not this URL")
        return url

    return check


def _secure(url: str) -> str:
    parts = urlsplit(url)
    here = parts.hostname in {LOOPBACK, "localhost", "::1"}
    if not parts.hostname or not (parts.scheme == "https" or (here and parts.scheme == "http")):
        raise ValueError("should begin with https://: whoever can change these keys can make tokens")
    return url


Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)]
Algorithm = Literal["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "HS256", "HS384", "HS512"]
Claim = Annotated[str, Field(min_length=1)]
# What a tenant may be called, in a token's claim too.
TENANT = r"^[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,99}$"


class Settings(BaseSettings):
    """Every `GATEWAY_…` variable. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid")

    host: str = Field("0.0.0.0", description="address of the public and the internal listener")
    port: Port = Field(8080, description="public port")
    metrics_port: Port = Field(9100, description="internal port: metrics and health")
    admin_port: Port = Field(8081, description="admin port, on the container's own loopback")
    data_dir: Path = Field(Path("/data"), description="directory of the key store")
    secrets_dir: Path = Field(Path("/run/secrets"), description="directory of the secret files")
    engine_profile: Path = Field(Path("/etc/gatehouse/profile.yaml"), description="the engine's profile file")
    upstreams_file: Path = Field(Path("/etc/gatehouse/upstreams.yaml"), description="list of engines")
    plans_file: Path = Field(
        Path("/etc/gatehouse/config/plans.yaml"), description="the plans; read again when it changes"
    )
    model_aliases: dict[str, str] = Field(
        {}, description="JSON object: name a client may use -> served model name"
    )
    max_body_bytes: int = Field(
        1_048_576, gt=0, description="largest request body; Caddy's cap is the same number"
    )
    max_inflight_body_bytes: int = Field(
        67_108_864,
        gt=0,
        description="all request bodies held at one time; one tenant may hold a quarter of it",
    )
    body_timeout: Seconds = Field(30, description="for a client to send its whole body")
    connect_timeout: Seconds = Field(5, description="to connect to an engine")
    first_byte_timeout: Seconds = Field(300, description="for an engine's first byte: queue and prefill")
    idle_timeout: Seconds = Field(60, description="between two chunks of an engine's reply")
    total_timeout: Seconds = Field(1800, description="for one reply as a whole")
    drain_seconds: int = Field(60, gt=0, description="after SIGTERM, for streams to finish")
    optional_routes: Words = Field(
        (), description="routes that are off unless they stand here, comma-separated: /v1/rerank, /v1/score"
    )
    database_url: Annotated[str, AfterValidator(_without_password("postgresql"))] | None = Field(
        None, description="keys and usage in PostgreSQL, postgresql://user@host:port/name; empty: SQLite"
    )
    valkey_url: Annotated[str, AfterValidator(_without_password("valkey", "redis"))] | None = Field(
        None, description="limits in Valkey, valkey://host:port/number; empty: in this process"
    )
    valkey_timeout: Seconds = Field(0.1, description="for Valkey to answer before limits are local")
    replicas: int = Field(
        1, gt=0, description="gateways behind one Valkey; without it each allows its share of every limit"
    )
    snapshot_max_age: Seconds = Field(
        86_400, description="while the key store is away, for how long the last known keys are served"
    )
    failed_logins_per_minute: int = Field(
        30, gt=0, description="failed authentications per address; beyond it they get 429"
    )
    jwt_issuer: str | None = Field(
        None, description="issuer (iss) whose JSON Web Tokens may stand in place of keys; empty: none may"
    )
    jwt_audience: str | None = Field(None, description="what a token must name as its audience (aud)")
    jwt_algorithms: Annotated[tuple[Algorithm, ...], NoDecode, BeforeValidator(_words)] = Field(
        ("RS256", "ES256"), description="signatures that are taken, comma-separated: RS…, ES… or HS…"
    )
    jwt_jwks_url: Annotated[str, AfterValidator(_secure)] | None = Field(
        None, description="where the issuer publishes its keys, for RS… and ES…"
    )
    jwt_leeway: Annotated[float, Field(ge=0, le=600)] = Field(
        30, description="by how much the issuer's clock may differ"
    )
    jwt_tenant_claim: Claim = Field("tenant", description="claim that holds a token's tenant")
    jwt_plan_claim: Claim = Field("plan", description="claim that holds a token's plan")
    jwt_scopes_claim: Claim = Field("scope", description="claim that holds a token's scopes")
    jwt_default_tenant: Annotated[str, Field(pattern=TENANT)] | None = Field(
        None, description="tenant of a token that names none; empty: such a token is refused"
    )
    trusted_proxies: Annotated[tuple[Network, ...], NoDecode, BeforeValidator(_networks)] = Field(
        (), description="networks, comma-separated, whose X-Forwarded-For is believed"
    )
    ready_file: Path | None = Field(
        None, description="JSON file with the ports, written once all listeners accept"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level that is logged"
    )

    @model_validator(mode="after")
    def _tokens_can_be_checked(self) -> Self:
        if self.jwt_issuer is None:
            return self
        if self.jwt_audience is None:
            raise ValueError("GATEWAY_JWT_AUDIENCE: needed where GATEWAY_JWT_ISSUER is set")
        if not self.jwt_algorithms:
            raise ValueError("GATEWAY_JWT_ALGORITHMS: needed where GATEWAY_JWT_ISSUER is set")
        if self.jwt_jwks_url is None and any(not name.startswith("HS") for name in self.jwt_algorithms):
            raise ValueError(f"GATEWAY_JWT_JWKS_URL: needed for {', '.join(self.jwt_algorithms)}")
        return self

    @property
    def jwt_needs_secret(self) -> bool:
        """Whether an algorithm is one of a secret that the issuer shares."""
        return self.jwt_issuer is not None and any(name.startswith("HS") for name in self.jwt_algorithms)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - this and what follows: the base class's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `read` hands over: no source is looked at behind its back."""
        return (init_settings,)

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "Settings":
        """Settings from `environ` alone; an empty value is none. Raises ConfigurationError, also for a
        GATEWAY_ variable that does not exist.
        """
        known = [name.upper() for name in cls.model_fields]
        for name in sorted(environ):
            if name.startswith(ENV_PREFIX) and (rest := name.removeprefix(ENV_PREFIX)) not in known:
                if name in RETIRED:
                    raise ConfigurationError(f"{name} is no longer a setting. {RETIRED[name]}")
                near = difflib.get_close_matches(rest, known, n=1)
                hint = f" (did you mean {ENV_PREFIX}{near[0]}?)" if near else ""
                raise ConfigurationError(f"{name} is not a setting{hint}. All are in .env.example.")
        source = EnvSettingsSource(cls)
        source.env_vars = {name.lower(): value for name, value in environ.items() if value}
        try:
            return cls(**source())
        except ValidationError as error:
            raise ConfigurationError(first_problem(error, ENV_PREFIX)) from None
        except ValueError:  # from pydantic-settings: the one value that should be JSON is not
            raise ConfigurationError(f"{ENV_PREFIX}MODEL_ALIASES is not a JSON object.") from None


class Upstream(BaseModel):
    """One engine. `key_file` names the file in the secrets directory that holds its API key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    url: HttpUrl
    key_file: str = "engine_api_key"

    @property
    def base(self) -> str:
        """The URL without a trailing slash."""
        return str(self.url).rstrip("/")


class UpstreamList(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    upstreams: Annotated[tuple[Upstream, ...], Field(min_length=1)]


class EngineProfile(BaseModel):
    """What the gateway needs of the engine's own config file. Lengths in tokens."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    served_model_name: Annotated[
        tuple[str, ...],
        Field(alias="served-model-name", min_length=1),
        BeforeValidator(lambda v: (v,) if isinstance(v, str) else v),
    ]
    max_model_len: int = Field(alias="max-model-len", gt=0)


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secret values, out of every repr."""

    key_pepper: bytes
    admin_token: str
    engine_keys: Mapping[str, str]
    database_password: str | None = None
    valkey_password: str | None = None
    jwt_secret: bytes | None = None

    def derived(self, label: str) -> bytes:
        """A key of 32 bytes for one purpose, from the pepper: HMAC-SHA256 of the label."""
        return hmac.digest(self.key_pepper, f"gatehouse {label}".encode(), "sha256")

    def __repr__(self) -> str:
        return "Secrets(…)"


@dataclass(frozen=True, slots=True)
class Configuration:
    """All that `create_app` is built from."""

    settings: Settings
    secrets: Secrets
    profile: EngineProfile
    upstreams: tuple[Upstream, ...]

    @classmethod
    def load(cls, environ: Mapping[str, str]) -> "Configuration":
        """Reads environment, secrets, profile and upstreams, once. Raises ConfigurationError."""
        settings = Settings.read(environ)
        profile = load_yaml(EngineProfile, settings.engine_profile)
        upstreams = load_yaml(UpstreamList, settings.upstreams_file).upstreams
        names = [upstream.name for upstream in upstreams]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"{settings.upstreams_file}: two upstreams have the same name.")
        for alias, model in settings.model_aliases.items():
            if model not in profile.served_model_name:
                served = ", ".join(profile.served_model_name)
                raise ConfigurationError(
                    f"GATEWAY_MODEL_ALIASES: {alias!r} points to {model!r}; the engine serves {served}."
                )
        return cls(settings, _secrets(settings, upstreams), profile, upstreams)


def _secrets(settings: Settings, upstreams: Iterable[Upstream]) -> Secrets:
    """Those that these settings need."""

    def read(name: str) -> str:
        return read_secret(settings.secrets_dir, name)

    # A socket's owner is known without a password.
    database = settings.database_url and (
        urlsplit(settings.database_url).hostname or (settings.secrets_dir / "database_password").exists()
    )
    return Secrets(
        key_pepper=read("key_pepper").encode(),
        admin_token=read("admin_token"),
        engine_keys={upstream.name: read(upstream.key_file) for upstream in upstreams},
        database_password=read("database_password") if database else None,
        valkey_password=read("valkey_password") if settings.valkey_url else None,
        jwt_secret=read("jwt_secret").encode() if settings.jwt_needs_secret else None,
    )
