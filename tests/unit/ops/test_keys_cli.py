"""`ops keys …`: what is asked of the gateway, what is printed, and what bad input costs: one line."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops.commands import Result
from tests.unit.ops.conftest import CERTIFICATE, Checkout, Terminal
from tests.unit.ops.fake_admin import CALL, KEY, MADE, FakeAdmin, refused, said


@pytest.fixture
def admin(checkout: Checkout) -> FakeAdmin:
    return FakeAdmin(checkout.commands)


def test_a_key_is_printed_once_with_an_environment_to_paste(
    admin: FakeAdmin, checkout: Checkout, terminal: Terminal
) -> None:
    admin.on("POST /admin/keys", said(201, MADE))
    code, out, _ = terminal.run("keys", "create", "--name", "alice", "--expires", "2027-01-02")
    certificate = checkout.root / "build" / "ca" / "root.crt"
    assert code == 0
    assert out.splitlines()[-3:] == [
        "export OPENAI_BASE_URL=https://localhost/v1",
        f"export OPENAI_API_KEY={MADE['key']}",
        f"export SSL_CERT_FILE={certificate}",
    ]
    assert out.count(MADE["key"]) == 1
    assert certificate.read_text() == CERTIFICATE
    (sent,) = admin.bodies()
    assert set(sent) == {"name", "tenant", "expires_at"}
    assert sent["expires_at"].startswith("2027-01-02T00:00:00")
    assert len(sent["expires_at"]) > len("2027-01-02T00:00:00")


def test_everything_that_a_key_can_have_is_sent(admin: FakeAdmin, terminal: Terminal) -> None:
    admin.on("POST /admin/keys", said(201, MADE))
    numbers = {
        "requests-per-minute": 1,
        "tokens-per-minute": 2,
        "parallel-requests": 3,
        "tokens-per-day": 4,
        "tokens-per-month": 5,
        "output-cap": 6,
        "output-default": 7,
        "priority": 0,
    }
    options = [text for name, value in numbers.items() for text in (f"--{name}", str(value))]
    words = ["--name", "a b", "--tenant", "t", "--plan", "wide", "--over-cap", "refuse"]
    lists = ["--scopes", "generate,embed", "--models", "small, large"]
    assert terminal.run("keys", "create", *words, *lists, *options)[0] == 0
    assert admin.bodies() == [
        {
            **{name.replace("-", "_"): value for name, value in numbers.items()},
            "name": "a b",
            "tenant": "t",
            "plan": "wide",
            "over_cap": "refuse",
            "scopes": ["generate", "embed"],
            "models": ["small", "large"],
        }
    ]


def test_an_end_can_be_a_time_from_now(admin: FakeAdmin, terminal: Terminal) -> None:
    admin.on("POST /admin/keys", said(201, MADE))
    terminal.run("keys", "create", "--name", "x", "--expires", "90d")
    end = datetime.fromisoformat(admin.bodies()[0]["expires_at"])
    assert abs(end - datetime.now(UTC) - timedelta(days=90)) < timedelta(minutes=1)


@pytest.mark.parametrize("end", ["soon", "2027-13-01", "90x", "1000000d", ""])
def test_an_end_that_is_none_is_wrong_usage(admin: FakeAdmin, terminal: Terminal, end: str) -> None:
    code, _, errors = terminal.run("keys", "create", "--name", "x", "--expires", end)
    assert code == 2
    assert "no date" in errors
    assert admin.asked() == []


def test_a_key_is_not_lost_when_the_certificate_cannot_be_had(
    admin: FakeAdmin, checkout: Checkout, terminal: Terminal
) -> None:
    admin.on("POST /admin/keys", said(201, MADE))
    checkout.commands.on(
        "docker compose exec -T caddy cat", Result(1, err='service "caddy" is not running\n')
    )
    code, out, _ = terminal.run("keys", "create", "--name", "alice")
    assert code == 0
    assert MADE["key"] in out
    assert "make ca" in out
    assert json.loads(terminal.run("keys", "create", "--name", "alice", "--json")[1])["key"] == MADE["key"]


def test_json_of_a_key_is_for_scripts(admin: FakeAdmin, checkout: Checkout, terminal: Terminal) -> None:
    admin.on("POST /admin/keys", said(201, MADE))
    with (checkout.root / ".env").open("a") as env:
        env.write("TLS_MODE=acme\n")
    code, out, _ = terminal.run("keys", "create", "--name", "alice", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["key"] == found["environment"]["OPENAI_API_KEY"] == MADE["key"]
    assert "SSL_CERT_FILE" not in found["environment"]


def test_only_what_is_given_changes(admin: FakeAdmin, terminal: Terminal) -> None:
    admin.on("PATCH /admin/keys/abcdefghij", said(200, {**KEY, "plan": "wide"}))
    code, out, _ = terminal.run("keys", "change", "abcdefghij", "--plan", "wide", "--priority", "9")
    assert (code, admin.bodies()) == (0, [{"plan": "wide", "priority": 9}])
    assert out.startswith("changed abcdefghij (alice [x]): plan=wide")


def test_cleared_is_null(admin: FakeAdmin, terminal: Terminal) -> None:
    admin.on("PATCH /admin/keys/abcdefghij", said(200, KEY))
    options = ("--clear", "plan", "--clear", "--tokens-per-day", "--clear", "expires")
    assert terminal.run("keys", "change", "abcdefghij", *options)[0] == 0
    assert admin.bodies() == [{"plan": None, "tokens_per_day": None, "expires_at": None}]


@pytest.mark.parametrize(
    ("options", "said_so"),
    [([], "say what to change"), (["--clear", "name"], "no default"), (["--clear", "nope"], "there are")],
)
def test_a_change_of_nothing_is_wrong_usage(
    admin: FakeAdmin, terminal: Terminal, options: list[str], said_so: str
) -> None:
    code, _, errors = terminal.run("keys", "change", "abcdefghij", *options)
    assert code == 2
    assert said_so in errors
    assert admin.asked() == []


@pytest.mark.parametrize(
    ("options", "seconds"), [([], 0), (["--overlap", "24h"], 86_400), (["--overlap", "30m"], 1_800)]
)
def test_a_rotation_prints_the_new_secret_and_how_long_the_old_one_is_good(
    admin: FakeAdmin, terminal: Terminal, options: list[str], seconds: float
) -> None:
    record = {**MADE, "state": "rotating", "previous_until": "2026-12-02T01:02:03Z"}
    admin.on("POST /admin/keys/abcdefghij/rotate", said(200, record))
    code, out, _ = terminal.run("keys", "rotate", "abcdefghij", *options)
    assert (code, admin.bodies()) == (0, [{"overlap_seconds": seconds}])
    assert f"export OPENAI_API_KEY={MADE['key']}" in out
    assert "accepted until 2026-12-02 01:02 UTC" in out


def test_an_overlap_that_is_no_time_is_wrong_usage(admin: FakeAdmin, terminal: Terminal) -> None:
    assert terminal.run("keys", "rotate", "abcdefghij", "--overlap", "long")[0] == 2
    assert admin.asked() == []


@pytest.mark.parametrize("command", ["disable", "enable", "revoke"])
def test_a_key_is_disabled_enabled_and_revoked(admin: FakeAdmin, terminal: Terminal, command: str) -> None:
    admin.on(f"POST /admin/keys/abcdefghij/{command}", said(200, KEY))
    assert terminal.run("keys", command, "abcdefghij")[1] == f"{command}d abcdefghij (alice [x])\n"
    assert json.loads(terminal.run("keys", command, "abcdefghij", "--json")[1]) == KEY


def test_who_asks_is_told(admin: FakeAdmin, terminal: Terminal) -> None:
    admin.on("POST /admin/keys/abcdefghij/revoke", said(200, KEY))
    terminal.run("keys", "revoke", "abcdefghij")
    (actor,) = admin.actors()
    assert actor


def test_imported_keys_are_printed_once_as_csv(admin: FakeAdmin, terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "keys.csv"
    file.write_text("name,tenant\nalice,web\nbob,web\n")
    taken = {**KEY, "key": None}
    admin.on("POST /admin/keys/import", said(201, {"count": 2, "dry_run": False, "keys": [MADE, taken]}))
    code, out, errors = terminal.run("keys", "import", str(file))
    assert code == 0
    assert [*csv.reader(io.StringIO(out))] == [
        ["id", "name", "tenant", "key"],
        [MADE["id"], MADE["name"], MADE["tenant"], MADE["key"]],
    ]
    assert errors == "1 new keys, shown this once\ntook over 1 keys\n"
    assert json.loads(terminal.run("keys", "import", str(file), "--json")[1])["keys"] == [MADE, taken]
    assert admin.bodies()[0] == {
        "keys": [{"name": "alice", "tenant": "web"}, {"name": "bob", "tenant": "web"}],
        "dry_run": False,
    }


def test_a_dry_run_says_what_it_did_not_do(admin: FakeAdmin, terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    file.write_text('{"name": "alice"}\n')
    admin.on("POST /admin/keys/import", said(201, {"count": 1, "dry_run": True, "keys": []}))
    code, out, errors = terminal.run("keys", "import", "--dry-run", str(file))
    assert (code, out) == (0, "")
    assert errors == f"{file}: 1 keys could be imported; nothing was done\n"
    assert admin.bodies()[0]["dry_run"] is True


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("keys.1.plan: there is no plan 'x'; there are standard.", "line 4: plan: there is no plan 'x'"),
        ("keys.0.id: there is a key aaaaaaaaaa already; nothing was imported.", "line 2: id: there is a key"),
        ("keys.7.name: no such line.", "keys.7.name: no such line"),
        ("The key store does not answer.", "The key store does not answer"),
    ],
)
def test_a_refused_import_names_the_line(
    admin: FakeAdmin, terminal: Terminal, tmp_path: Path, message: str, shown: str
) -> None:
    file = tmp_path / "keys.csv"
    file.write_text("name,plan\nalice,\n\nbob,x\n")
    admin.on("POST /admin/keys/import", refused(400, message))
    code, out, errors = terminal.run("keys", "import", str(file))
    assert (code, out) == (1, "")
    assert shown in errors
    assert errors.lower().count("nothing was imported") == 1
    assert errors.count("\n") == 1


def test_a_file_that_is_none_asks_nothing_of_the_gateway(
    admin: FakeAdmin, terminal: Terminal, tmp_path: Path
) -> None:
    code, _, errors = terminal.run("keys", "import", str(tmp_path / "none.csv"))
    assert code == 1
    assert errors.count("\n") == 1
    assert admin.asked() == []


def test_an_export_is_json_lines_and_says_that_it_has_no_secrets(
    admin: FakeAdmin, terminal: Terminal, tmp_path: Path
) -> None:
    record = {"plan": None, "digest": "ab" * 32, "tenant": "web", "name": "alice", "id": "abcdefghij"}
    admin.on("GET /admin/keys/export", said(200, {"keys": [record], "next": "abcdefghij"}))
    admin.on("GET /admin/keys/export?after=abcdefghij", said(200, {"keys": [record], "next": None}))
    code, out, errors = terminal.run("keys", "export")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {"id": "abcdefghij", "name": "alice", "tenant": "web", "digest": "ab" * 32}
    ] * 2
    assert out.startswith('{"id": "abcdefghij", "name": "alice", "tenant": "web", ')
    assert errors.startswith("2 keys, without secrets: digests")
    file = tmp_path / "out.jsonl"
    assert terminal.run("keys", "export", "--out", str(file))[:2] == (0, "")
    assert file.read_text() == out
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_export_never_writes_over_a_file(admin: FakeAdmin, terminal: Terminal, tmp_path: Path) -> None:
    admin.on("GET /admin/keys/export", said(200, {"keys": [], "next": None}))
    file = tmp_path / "out.jsonl"
    file.write_text("mine")
    code, _, errors = terminal.run("keys", "export", "--out", str(file))
    assert code == 1
    assert "exists" in errors
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (["revoke", "zzzzzzzzzz"], "POST /admin/keys/zzzzzzzzzz/revoke"),
        (["show", "zzzzzzzzzz"], "GET /admin/keys/zzzzzzzzzz"),
        (["limits", "zzzzzzzzzz"], "GET /admin/limits/zzzzzzzzzz"),
    ],
)
def test_an_id_that_does_not_exist_is_one_line(
    admin: FakeAdmin, terminal: Terminal, arguments: list[str], call: str
) -> None:
    admin.on(call, refused(404, "x"))
    code, out, errors = terminal.run("keys", *arguments)
    assert (code, out) == (1, "")
    assert errors == ("error: There is no key with the id zzzzzzzzzz. `make keys ARGS=list` shows the ids.\n")


def test_half_of_a_direct_connection_is_refused(terminal: Terminal) -> None:
    code, _, errors = terminal.run("keys", "--admin-url", "http://127.0.0.1:9", "list")
    assert code == 1
    assert "belong together" in errors


def test_a_key_from_a_gateway_outside_docker_comes_without_this_hosts_address(
    checkout: Checkout, terminal: Terminal, tmp_path: Path
) -> None:
    """The command line takes the way it was told; nobody listens there."""
    (tmp_path / "token").write_text("t" * 40)
    where = ("--admin-url", "http://127.0.0.1:9", "--admin-token-file", str(tmp_path / "token"))
    code, _, errors = terminal.run("keys", *where, "list")
    assert code == 1
    assert "No gateway answers at http://127.0.0.1:9" in errors
    assert checkout.commands.ran(CALL) == []
