"""`ops.alerting.render`: from .env's ALERT_* variables to a configuration that Alertmanager accepts."""

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ops.alerting import INHIBIT_RULES, render
from ops.errors import OpsError

ROOT = Path(__file__).resolve().parents[3]
WEBHOOK = {"ALERT_WEBHOOK_URL": "https://chat.example.com/hooks/abc?x=1"}
MAIL = {
    "ALERT_EMAIL_TO": "oncall@example.com",
    "ALERT_SMTP_HOST": "smtp.example.com:587",
    "ALERT_EMAIL_FROM": "gatehouse@example.com",
}
LOGIN = {"ALERT_SMTP_USER": "gatehouse", "ALERT_SMTP_PASSWORD": "p\"a: {b} #c\\ '$d"}


def receiver(env: Mapping[str, str]) -> dict[str, Any]:
    config = yaml.safe_load(render(env))
    [only] = config["receivers"]
    assert isinstance(only, dict)
    assert config["route"]["receiver"] == only["name"]
    return only


def test_nothing_set_is_a_receiver_that_does_nothing() -> None:
    assert receiver({}) == {"name": "operator"}
    assert receiver(dict.fromkeys([*WEBHOOK, *MAIL, *LOGIN], "")) == {"name": "operator"}


def test_other_variables_are_none_of_its_business() -> None:
    assert render({"SITE_ADDRESS": "localhost", "GATEWAY_PORT": "8080"}) == render({})


def test_a_webhook() -> None:
    assert receiver(WEBHOOK)["webhook_configs"] == [
        {"url": "https://chat.example.com/hooks/abc?x=1", "send_resolved": True}
    ]


def test_mail_without_a_login() -> None:
    assert receiver(MAIL)["email_configs"] == [
        {
            "to": "oncall@example.com",
            "from": "gatehouse@example.com",
            "smarthost": "smtp.example.com:587",
            "require_tls": True,
            "send_resolved": True,
        }
    ]


def test_mail_with_a_login_keeps_the_password_as_it_is() -> None:
    [mail] = receiver(MAIL | LOGIN)["email_configs"]
    assert (mail["auth_username"], mail["auth_password"]) == ("gatehouse", LOGIN["ALERT_SMTP_PASSWORD"])


def test_several_recipients() -> None:
    [mail] = receiver(MAIL | {"ALERT_EMAIL_TO": "a@example.com,b@example.com"})["email_configs"]
    assert mail["to"] == "a@example.com, b@example.com"


@pytest.mark.parametrize(
    ("host", "smarthost"),
    [
        ("smtp.example.com", "smtp.example.com:587"),
        ("smtp.example.com:465", "smtp.example.com:465"),
        ("10.0.0.5:25", "10.0.0.5:25"),
        ("[fd00::5]:25", "[fd00::5]:25"),
    ],
)
def test_the_submission_port_is_the_default(host: str, smarthost: str) -> None:
    [mail] = receiver(MAIL | {"ALERT_SMTP_HOST": host})["email_configs"]
    assert mail["smarthost"] == smarthost


def test_a_relay_without_tls_and_without_a_login() -> None:
    [mail] = receiver(MAIL | {"ALERT_SMTP_TLS": "off"})["email_configs"]
    assert mail["require_tls"] is False


def test_both_at_once() -> None:
    assert {"webhook_configs", "email_configs"} <= receiver(WEBHOOK | MAIL).keys()


@pytest.mark.parametrize(
    ("env", "variable"),
    [
        ({"ALERT_WEBHOOK_URL": "chat.example.com/hooks"}, "ALERT_WEBHOOK_URL"),
        ({"ALERT_WEBHOOK_URL": "ftp://chat.example.com"}, "ALERT_WEBHOOK_URL"),
        ({"ALERT_WEBHOOK_URL": "https://"}, "ALERT_WEBHOOK_URL"),
        ({"ALERT_WEBHOOK_URL": "https://chat.example.com:port/"}, "ALERT_WEBHOOK_URL"),
        ({"ALERT_WEBHOOK_URL": "https://chat.example.com:0/"}, "ALERT_WEBHOOK_URL"),
        ({"ALERT_WEBHOOK_URL": "https://[chat/"}, "ALERT_WEBHOOK_URL"),
        ({"ALERT_WEBHOOK_URL": "https://chat.example.com/a b"}, "ALERT_WEBHOOK_URL"),
        ({"ALERT_WEBHOOK_URL": "https://chat.example.com/{{ .CommonLabels.x }}"}, "ALERT_WEBHOOK_URL"),
        ({"ALERT_WEBHOOK_URL": "https://chat.example.com/\nroute: {}"}, "ALERT_WEBHOOK_URL"),
        ({k: v for k, v in MAIL.items() if k != "ALERT_EMAIL_TO"}, "ALERT_EMAIL_TO"),
        ({k: v for k, v in MAIL.items() if k != "ALERT_SMTP_HOST"}, "ALERT_SMTP_HOST"),
        ({k: v for k, v in MAIL.items() if k != "ALERT_EMAIL_FROM"}, "ALERT_EMAIL_FROM"),
        (LOGIN, "ALERT_EMAIL_TO"),
        (MAIL | {"ALERT_SMTP_USER": "gatehouse"}, "ALERT_SMTP_PASSWORD"),
        (MAIL | {"ALERT_SMTP_PASSWORD": "secret"}, "ALERT_SMTP_USER"),
        (MAIL | LOGIN | {"ALERT_SMTP_PASSWORD": "a\nroute: {}"}, "ALERT_SMTP_PASSWORD"),
        (MAIL | {"ALERT_EMAIL_TO": "oncall"}, "ALERT_EMAIL_TO"),
        (MAIL | {"ALERT_EMAIL_TO": "a@example.com,"}, "ALERT_EMAIL_TO"),
        (MAIL | {"ALERT_EMAIL_TO": "{{.x}}@example.com"}, "ALERT_EMAIL_TO"),
        (MAIL | {"ALERT_EMAIL_FROM": "Gatehouse <g@example.com>"}, "ALERT_EMAIL_FROM"),
        (MAIL | {"ALERT_SMTP_HOST": "smtp://smtp.example.com"}, "ALERT_SMTP_HOST"),
        (MAIL | {"ALERT_SMTP_HOST": "smtp.example.com:0"}, "ALERT_SMTP_HOST"),
        (MAIL | {"ALERT_SMTP_HOST": "smtp.example.com:65536"}, "ALERT_SMTP_HOST"),
        (MAIL | {"ALERT_SMTP_HOST": "smtp.example.com:587\n    x: y"}, "ALERT_SMTP_HOST"),
        (MAIL | {"ALERT_SMTP_TLS": "maybe"}, "ALERT_SMTP_TLS"),
        (MAIL | LOGIN | {"ALERT_SMTP_TLS": "off"}, "ALERT_SMTP_TLS"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_that_names_the_variable(
    env: Mapping[str, str], variable: str
) -> None:
    with pytest.raises(OpsError) as caught:
        render(env)
    assert variable in caught.value.message
    assert "\n" not in caught.value.message + caught.value.fix


def test_a_password_is_never_in_the_message() -> None:
    with pytest.raises(OpsError) as caught:
        render({"ALERT_SMTP_PASSWORD": "hunter2hunter2"})
    assert "hunter2" not in str(caught.value) + caught.value.fix


PRINTABLE = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)


@given(password=PRINTABLE, user=PRINTABLE)
def test_no_value_changes_anything_but_its_own_field(password: str, user: str) -> None:
    plain = yaml.safe_load(render(MAIL | LOGIN))
    config = yaml.safe_load(render(MAIL | {"ALERT_SMTP_USER": user, "ALERT_SMTP_PASSWORD": password}))
    mail = config["receivers"][0]["email_configs"][0]
    assert (mail["auth_username"], mail["auth_password"]) == (user, password)
    mail |= {"auth_username": LOGIN["ALERT_SMTP_USER"], "auth_password": LOGIN["ALERT_SMTP_PASSWORD"]}
    assert config == plain


def test_what_is_held_back_and_by_what_are_alerts_that_exist() -> None:
    groups = yaml.safe_load((ROOT / "prometheus" / "rules" / "alerts.yml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    matchers = [m for rule in INHIBIT_RULES for m in rule["source_matchers"] + rule["target_matchers"]]
    named = {
        name
        for matcher in matchers
        if matcher.startswith("alertname")
        for name in matcher.split('"')[1].split("|")
    }
    assert named == alerts


@pytest.mark.requires("amtool")
@pytest.mark.parametrize(
    "env",
    [
        {},
        WEBHOOK,
        MAIL,
        MAIL | LOGIN,
        MAIL | {"ALERT_SMTP_TLS": "off"},
        WEBHOOK | MAIL | LOGIN,
        MAIL | LOGIN | {"ALERT_SMTP_PASSWORD": "0o17"},
        MAIL | LOGIN | {"ALERT_SMTP_PASSWORD": "~"},
        MAIL | LOGIN | {"ALERT_SMTP_PASSWORD": "!!binary x"},
        MAIL | LOGIN | {"ALERT_SMTP_PASSWORD": "{{ fail }}"},
    ],
)
def test_alertmanager_accepts_it(
    env: Mapping[str, str], tmp_path: Path, capability: Callable[[str], Mapping[str, str]]
) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(render(env))
    amtool = capability("amtool")["AMTOOL"]
    done = subprocess.run([amtool, "check-config", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.requires("amtool")
@pytest.mark.parametrize("severity", ["critical", "warning"])
def test_every_alert_is_routed_to_the_operator(
    severity: str, tmp_path: Path, capability: Callable[[str], Mapping[str, str]]
) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(render(WEBHOOK))
    amtool = capability("amtool")["AMTOOL"]
    done = subprocess.run(
        [amtool, "config", "routes", "test", f"--config.file={path}", f"severity={severity}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "operator"), done.stderr
