"""What the documents name exists, and what exists is documented."""

import re
import subprocess
from pathlib import Path

import pytest

from docs import generate
from gateway.settings import ENV_PREFIX, Settings
from tests.capabilities import ROOT

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
TARGET = re.compile(r"^(?P<name>[a-z][a-z-]*):(?:.*## (?P<meaning>\S.*))?", flags=re.MULTILINE)
NAMED = re.compile(r"(?:^|[`\s(])make ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)", flags=re.MULTILINE)
CODE = re.compile(r"```(?:sh|bash|console)?\n(.*?)```|`([^`\n]+)`", flags=re.DOTALL)
SERVED = re.compile(r"^served-model-name: (\S+)", flags=re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")

# Addresses, ports and paths inside the container: compose publishes and mounts what fits their defaults, and
# names the one proxy whose word is taken.
SET_BY_THE_STACK = {
    *("GATEWAY_HOST", "GATEWAY_PORT", "GATEWAY_METRICS_PORT", "GATEWAY_ADMIN_PORT", "GATEWAY_DATA_DIR"),
    *("GATEWAY_SECRETS_DIR", "GATEWAY_ENGINE_PROFILE", "GATEWAY_UPSTREAMS_FILE", "GATEWAY_READY_FILE"),
    *("GATEWAY_PLANS_FILE", "GATEWAY_DATABASE_URL", "GATEWAY_VALKEY_URL", "GATEWAY_TRUSTED_PROXIES"),
}


def makefile_targets() -> dict[str, str | None]:
    text = (ROOT / "Makefile").read_text()
    return {found["name"]: found["meaning"] for found in TARGET.finditer(text)}


def targets_named_in(document: Path) -> set[str]:
    """The words after `make` in code: blocks and inline, up to the first that is no plain word."""
    code = "\n".join("".join(groups) for groups in CODE.findall(document.read_text()))
    return {word for words in NAMED.findall(code) for word in words.split()}


def variables() -> list[str]:
    return [ENV_PREFIX + name.upper() for name in Settings.model_fields]


def test_every_target_says_what_it_does_and_make_alone_lists_it() -> None:
    targets = makefile_targets()
    assert len(targets) >= 14
    assert [name for name, meaning in targets.items() if not meaning] == []
    listed = subprocess.run(
        ["make"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line.split()[1] for line in listed] == list(targets)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_make_target_that_a_document_names_exists(document: Path) -> None:
    assert targets_named_in(document) <= set(makefile_targets())


def test_the_readme_names_the_targets_that_a_newcomer_types() -> None:
    assert {"demo", "test", "setup", "model", "up", "keys"} <= targets_named_in(ROOT / "README.md")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_document_links_to_exists(document: Path) -> None:
    links = LINK.findall(document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("variable", variables())
def test_every_setting_is_documented(variable: str) -> None:
    assert f"| `{variable}` |" in (ROOT / "docs/settings.md").read_text()


def test_the_example_has_every_setting_that_compose_takes_from_it_and_no_other() -> None:
    example = (ROOT / ".env.example").read_text()
    named = set(re.findall(rf"^(?:# ?)?({ENV_PREFIX}[A-Z0-9_]+)=", example, flags=re.MULTILINE))
    composed = "".join(path.read_text() for path in ROOT.glob("compose*.yaml"))
    assert named == set(re.findall(rf"\$\{{({ENV_PREFIX}[A-Z0-9_]+)", composed))


def test_every_setting_can_be_set_from_the_example_unless_it_is_the_containers_own() -> None:
    example = (ROOT / ".env.example").read_text()
    settable = {variable for variable in variables() if re.search(rf"\b{variable}=", example)}
    assert set(variables()) - settable == SET_BY_THE_STACK


def test_the_api_page_asks_for_a_model_that_a_profile_serves() -> None:
    asked = set(re.findall(r'model="([^"]+)"', (ROOT / "docs/api.md").read_text()))
    profiles = (ROOT / "vllm" / "profiles").glob("*.yaml")
    served = {name for path in profiles for name in SERVED.findall(path.read_text())}
    assert asked
    assert asked <= served


@pytest.mark.parametrize("name", generate.PAGES)
def test_a_page_has_the_tables_that_the_code_says(name: str) -> None:
    page = (ROOT / "docs" / name).read_text()
    assert generate.page(name, page) == page


def test_the_settings_page_tells_each_default() -> None:
    table = dict(
        re.findall(r"^\| `(\w+)` \| ([^|]*) \|", (ROOT / "docs/settings.md").read_text(), flags=re.MULTILINE)
    )
    for name, setting in Settings.model_fields.items():
        words = ",".join(setting.default) if isinstance(setting.default, tuple) else setting.default
        default = "" if words in (None, "") else f"`{words}`"
        assert table[ENV_PREFIX + name.upper()].strip() == default, name
