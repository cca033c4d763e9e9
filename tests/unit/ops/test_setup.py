"""`make setup` makes what is missing, keeps what is there, and can be stopped at any point."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.settings import read_secret
from ops import secretfiles
from ops.errors import OpsError
from ops.gpus import Gpu, fitting_profile
from ops.setup import Choice, setup
from tests.unit.ops.conftest import Checkout
from tests.unit.ops.fake_commands import NO_COMMAND, NO_DRIVER, ONE_3090, TWO_3090


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize(
    ("gpus", "profile"), [(ONE_3090, "single-3090-awq"), (TWO_3090, "dual-3090-bf16")], ids=["one", "two"]
)
def test_a_gpu_host_gets_its_profile_and_vllm(checkout: Checkout, gpus: str, profile: str) -> None:
    checkout.commands.on("nvidia-smi", out=gpus)
    setup(checkout.site, Choice())
    assert checkout.site.variables()["GATEHOUSE_PROFILE"] == profile
    assert checkout.site.variables()["COMPOSE_FILE"] == "compose.yaml"
    assert checkout.said[-1] == "next: make model, then make up"


@pytest.mark.parametrize("answer", [NO_COMMAND, NO_DRIVER], ids=["no nvidia-smi", "no driver"])
def test_a_host_without_a_gpu_gets_the_standin_and_is_told(checkout: Checkout, answer: object) -> None:
    checkout.commands.on("nvidia-smi", answer)  # type: ignore[arg-type]
    setup(checkout.site, Choice())
    assert checkout.site.variables()["COMPOSE_FILE"] == "compose.yaml:compose.standin.yaml"
    assert "no NVIDIA GPU answers" in checkout.said.text
    assert "put COMPOSE_FILE=compose.yaml in .env" in checkout.said.text
    assert checkout.said[-1] == "next: make up"


def test_options_win_over_what_is_found(checkout: Checkout) -> None:
    checkout.commands.on("nvidia-smi", out=ONE_3090)
    setup(checkout.site, Choice(profile="dual-3090-bf16", standin=True))
    assert checkout.site.variables()["GATEHOUSE_PROFILE"] == "dual-3090-bf16"
    assert "standin" in checkout.site.variables()["COMPOSE_FILE"]


def test_a_profile_that_does_not_exist_changes_nothing(checkout: Checkout) -> None:
    with pytest.raises(OpsError, match="no profile quad"):
        setup(checkout.site, Choice(profile="quad"))
    assert not (checkout.root / ".env").exists()
    assert not (checkout.root / "secrets").exists()


def test_two_small_cards_are_no_pair() -> None:
    small, large = Gpu("NVIDIA A2", 15_356, "580.1"), Gpu("NVIDIA L4", 23_034, "580.1")
    assert fitting_profile([small, large]) == "single-3090-awq"
    assert fitting_profile([large, large]) == "dual-3090-bf16"


def test_secrets_are_strong_different_and_closed_to_others_whatever_the_umask(checkout: Checkout) -> None:
    checkout.commands.on("nvidia-smi", NO_COMMAND)
    before = os.umask(0o777)
    try:
        os.umask(0o027)
        setup(checkout.site, Choice())
    finally:
        os.umask(before)
    secrets = checkout.root / "secrets"
    assert mode(secrets) == 0o700
    assert {path.name for path in secrets.iterdir()} == {*secretfiles.NAMES, "alertmanager.yml"}
    assert {mode(path) for path in secrets.iterdir()} == {0o444}
    values = {read_secret(secrets, name) for name in secretfiles.NAMES}
    assert len(values) == len(secretfiles.NAMES)
    assert {len(value) for value in values} == {43}
    assert mode(checkout.root / ".env") == 0o600


def test_a_second_run_changes_nothing_and_says_so(checkout: Checkout) -> None:
    checkout.commands.on("nvidia-smi", out=ONE_3090)
    setup(checkout.site, Choice())
    env, secrets = (checkout.root / ".env").read_bytes(), contents(checkout.root / "secrets")
    checkout.said.clear()
    setup(checkout.site, Choice())
    assert (checkout.root / ".env").read_bytes() == env
    assert contents(checkout.root / "secrets") == secrets
    assert "left .env as it is" in checkout.said
    assert "left as they are in secrets/" in checkout.said.text


def test_an_operators_env_is_kept_byte_for_byte_and_completed_at_the_end(checkout: Checkout) -> None:
    own = "# mine\r\nGATEHOUSE_PROFILE='dual-3090-bf16'   # both\nCOMPOSE_FILE=compose.yaml\nMY_OWN=1"
    (checkout.root / ".env").write_bytes(own.encode())
    (checkout.root / ".env").chmod(0o640)
    setup(checkout.site, Choice())
    assert (checkout.root / ".env").read_bytes().startswith(own.encode() + b"\n")
    assert mode(checkout.root / ".env") == 0o640
    assert any(
        line.startswith("added to the end of .env") and "SITE_ADDRESS" in line for line in checkout.said
    )
    assert checkout.site.variables()["MY_OWN"] == "1"
    assert checkout.commands.calls == []


@pytest.mark.parametrize("choice", [Choice(profile="dual-3090-bf16"), Choice(standin=True)])
def test_an_option_against_an_existing_env_is_refused_not_ignored(checkout: Checkout, choice: Choice) -> None:
    (checkout.root / ".env").write_text("GATEHOUSE_PROFILE=single-3090-awq\n")
    with pytest.raises(OpsError, match="never changes"):
        setup(checkout.site, choice)
    assert (checkout.root / ".env").read_text() == "GATEHOUSE_PROFILE=single-3090-awq\n"


def test_an_option_that_says_what_env_has_is_no_conflict(checkout: Checkout) -> None:
    chosen = Choice(profile="dual-3090-bf16", standin=True)
    checkout.commands.on("nvidia-smi", NO_COMMAND)
    setup(checkout.site, chosen)
    before = (checkout.root / ".env").read_bytes()
    setup(checkout.site, chosen)
    assert (checkout.root / ".env").read_bytes() == before


def test_an_env_that_cannot_be_read_is_left_alone(checkout: Checkout) -> None:
    (checkout.root / ".env").write_text("A='open\n")
    with pytest.raises(OpsError, match="line 1"):
        setup(checkout.site, Choice())
    assert (checkout.root / ".env").read_text() == "A='open\n"


@pytest.mark.parametrize(
    "value", ["changeme" * 8, "short", "a" * 60, ""], ids=["placeholder", "short", "dull", "empty"]
)
def test_a_weak_secret_is_refused_and_not_replaced(checkout: Checkout, value: str) -> None:
    checkout.commands.on("nvidia-smi", NO_COMMAND)
    secrets = checkout.root / "secrets"
    secrets.mkdir()
    (secrets / "admin_token").write_text(value)
    with pytest.raises(OpsError, match="admin_token") as caught:
        setup(checkout.site, Choice())
    assert "make setup" in caught.value.fix
    assert (secrets / "admin_token").read_text() == value


def test_an_interrupted_run_is_completed_by_the_next(checkout: Checkout) -> None:
    checkout.commands.on("nvidia-smi", NO_COMMAND)
    secrets = checkout.root / "secrets"
    secrets.mkdir(mode=0o755)
    (secrets / ".new-key_pepper.4711").write_text("half")
    (checkout.root / ".env.new").write_text("half")
    assert secretfiles.ensure_secret(secrets, "engine_api_key")
    kept = (secrets / "engine_api_key").read_bytes()
    setup(checkout.site, Choice())
    assert (secrets / "engine_api_key").read_bytes() == kept
    assert mode(secrets) == 0o700
    assert {path.name for path in secrets.iterdir()} == {*secretfiles.NAMES, "alertmanager.yml"}
    assert not (checkout.root / ".env.new").exists()


def test_a_secret_made_by_a_run_at_the_same_time_wins(tmp_path: Path) -> None:
    other = "x7" + "0123456789abcdefghijklmnopqrstuvwxyz-ABCDE"

    def random(_: int) -> str:
        (tmp_path / "admin_token").write_text(other)
        return "never used " * 5

    assert not secretfiles.ensure_secret(tmp_path, "admin_token", random)
    assert (tmp_path / "admin_token").read_text() == other


def test_alerting_is_rendered_again_when_env_changes(checkout: Checkout) -> None:
    checkout.commands.on("nvidia-smi", NO_COMMAND)
    setup(checkout.site, Choice())
    with (checkout.root / ".env").open("a") as env:
        env.write("ALERT_WEBHOOK_URL=https://hooks.example.com/gatehouse\n")
    checkout.said.clear()
    setup(checkout.site, Choice())
    rendered = checkout.root / "secrets" / "alertmanager.yml"
    assert "https://hooks.example.com/gatehouse" in rendered.read_text()
    assert mode(rendered) == 0o444
    assert "rendered secrets/alertmanager.yml" in checkout.said.text
    assert "force-recreate alertmanager" in checkout.said.text


def test_a_directory_that_cannot_be_made_is_named(checkout: Checkout) -> None:
    checkout.commands.on("nvidia-smi", NO_COMMAND)
    (checkout.root / "secrets").write_text("a file")
    with pytest.raises(OpsError, match="cannot be written"):
        setup(checkout.site, Choice())


def test_a_missing_example_is_named(checkout: Checkout) -> None:
    checkout.commands.on("nvidia-smi", NO_COMMAND)
    (checkout.root / ".env.example").unlink()
    with pytest.raises(OpsError, match=r"\.env\.example"):
        setup(checkout.site, Choice())


def test_a_variable_of_the_shell_counts_as_compose_counts_it_whether_dotenv_names_it_or_not(
    checkout: Checkout,
) -> None:
    checkout.commands.on("nvidia-smi", out=ONE_3090)
    setup(checkout.site, Choice())
    shell = {"GATEHOUSE_PROFILE": "dual-3090-bf16", "MODEL_SOURCE": "local"}
    variables = replace(checkout.site, environ=shell).variables()
    assert variables["GATEHOUSE_PROFILE"] == "dual-3090-bf16"
    assert variables["MODEL_SOURCE"] == "local"
    assert variables["COMPOSE_FILE"].startswith("compose.yaml")
