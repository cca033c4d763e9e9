"""Alertmanager's configuration from the ALERT_* variables of .env.

Alertmanager expands no variables, so its file is rendered. It lies
with the secrets: a webhook's address is one.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import yaml

from ops.errors import OpsError

HEADER = "# Rendered from the ALERT_* variables of .env by `make setup`. Changes here are lost.\n"
RECEIVER = "operator"

# Alertmanager expands {{ }} in addresses; what is no plain address is refused rather than escaped.
EMAIL = re.compile(r"[^\s@,;<>(){}\"'\\]+@[A-Za-z0-9.-]*[A-Za-z0-9]")
SMTP_HOST = re.compile(r"(?P<host>[A-Za-z0-9.-]*[A-Za-z0-9]|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?")
SUBMISSION_PORT = 587
MAX_PORT = 65535

EMAIL_NEEDS = ("ALERT_EMAIL_TO", "ALERT_SMTP_HOST", "ALERT_EMAIL_FROM")
EMAIL_OPTIONS = ("ALERT_SMTP_USER", "ALERT_SMTP_PASSWORD", "ALERT_SMTP_TLS")

# Latencies and errors are symptoms: whoever knows the cause need not be told them too.
SYMPTOMS = 'alertname=~"TimeToFirstTokenHigh|RequestDurationHigh|ErrorRatioHigh"'
INHIBIT_RULES: tuple[Mapping[str, list[str]], ...] = (
    {"source_matchers": ['alertname="GatewayDown"'], "target_matchers": [SYMPTOMS]},
    # Only when no engine is left. While another one serves, slow or failed answers are news.
    {"source_matchers": ['alertname="EngineDown"', 'severity="critical"'], "target_matchers": [SYMPTOMS]},
    {
        "source_matchers": ['alertname="EngineDown"'],
        "target_matchers": ['alertname=~"KVCacheNearlyFull|EngineNotScraped"'],
        "equal": ["upstream"],
    },
)


class Given(str):
    """A value from .env, written in double quotes: no YAML reader takes it for anything but a string."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        """Never writes anchors: two equal values are not one."""
        return True


def _quoted(dumper: yaml.SafeDumper, value: Given) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(value), style='"')


_Dumper.add_representer(Given, _quoted)


def render(env: Mapping[str, str]) -> str:
    """alertmanager.yml for a webhook, for e-mail, for both, or for nobody when no ALERT_* variable is set.

    Raises OpsError, which names the variable, for a malformed value and for half-configured e-mail.
    """
    receiver: dict[str, Any] = {"name": RECEIVER}
    if url := _value(env, "ALERT_WEBHOOK_URL"):
        receiver["webhook_configs"] = [{"url": _webhook(url), "send_resolved": True}]
    if any(_value(env, name) for name in (*EMAIL_NEEDS, *EMAIL_OPTIONS)):
        receiver["email_configs"] = [_email(env)]
    config = {
        "route": {
            "receiver": RECEIVER,
            "group_by": ["alertname"],
            # Long enough for a cause to arrive and hold back its symptoms.
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "12h",
            "routes": [{"matchers": ['severity="critical"'], "repeat_interval": "1h"}],
        },
        "inhibit_rules": [dict(rule) for rule in INHIBIT_RULES],
        "receivers": [receiver],
    }
    return HEADER + yaml.dump(config, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _value(env: Mapping[str, str], name: str) -> str:
    """The variable's value without surrounding blanks; empty when it is not set."""
    return _printable(name, env.get(name, "").strip())


def _printable(name: str, value: str) -> str:
    if not value.isprintable():
        raise OpsError(f"{name} holds a character that cannot be printed.", "Write it anew, on one line.")
    return value


def _webhook(url: str) -> Given:
    problem = OpsError(
        "ALERT_WEBHOOK_URL is not an http:// or https:// address.",
        "Give the whole address, such as https://chat.example.com/hooks/abc, or leave it empty.",
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise problem from error
    if parts.scheme not in {"http", "https"} or not host or port == 0 or re.search(r"[\s{}\"<>\\^`|]", url):
        raise problem
    return Given(url)


def _email(env: Mapping[str, str]) -> dict[str, Any]:
    if missing := [name for name in EMAIL_NEEDS if not _value(env, name)]:
        raise OpsError(
            f"{missing[0]} is not set, but other variables for e-mail alerts are.",
            f"Set {', '.join(EMAIL_NEEDS)} together, or none of ALERT_EMAIL_* and ALERT_SMTP_*.",
        )
    tls = _tls(env)
    return {
        "to": _addresses("ALERT_EMAIL_TO", env),
        "from": _address("ALERT_EMAIL_FROM", _value(env, "ALERT_EMAIL_FROM")),
        "smarthost": _smarthost(_value(env, "ALERT_SMTP_HOST")),
        **_login(env, tls=tls),
        # Port 465 is TLS from the first byte; on others STARTTLS is then demanded.
        "require_tls": tls,
        "send_resolved": True,
    }


def _addresses(name: str, env: Mapping[str, str]) -> Given:
    return Given(", ".join(_address(name, part.strip()) for part in _value(env, name).split(",")))


def _address(name: str, value: str) -> Given:
    if not EMAIL.fullmatch(value):
        raise OpsError(
            f"{name} is not an e-mail address: {value!r}.", "Write it as name@example.com, without a name."
        )
    return Given(value)


def _smarthost(value: str) -> Given:
    match = SMTP_HOST.fullmatch(value)
    port = int(match["port"] or SUBMISSION_PORT) if match else 0
    if match is None or not 0 < port <= MAX_PORT:
        raise OpsError(
            f"ALERT_SMTP_HOST is not HOST or HOST:PORT: {value!r}.",
            f"Write it as smtp.example.com:{SUBMISSION_PORT}, without smtp://.",
        )
    return Given(f"{match['host']}:{port}")


def _tls(env: Mapping[str, str]) -> bool:
    value = _value(env, "ALERT_SMTP_TLS") or "required"
    if value not in {"required", "off"}:
        raise OpsError(
            f"ALERT_SMTP_TLS is neither required nor off: {value!r}.", "Leave it empty for required."
        )
    return value == "required"


def _login(env: Mapping[str, str], *, tls: bool) -> dict[str, Given]:
    # A password may begin or end with a blank: it is taken as it stands.
    password = _printable("ALERT_SMTP_PASSWORD", env.get("ALERT_SMTP_PASSWORD", ""))
    user = _value(env, "ALERT_SMTP_USER")
    if not user and not password:
        return {}
    if not user or not password:
        missing = "ALERT_SMTP_PASSWORD" if user else "ALERT_SMTP_USER"
        raise OpsError(
            f"{missing} is not set, but its counterpart is.",
            "Set both, or neither for a server that asks for no login.",
        )
    if not tls:
        raise OpsError(
            "ALERT_SMTP_TLS=off would send ALERT_SMTP_PASSWORD in clear text.", "Leave ALERT_SMTP_TLS empty."
        )
    return {"auth_username": Given(user), "auth_password": Given(password)}
