"""The gateway's admin API as the commands see it through Docker: scripted answers, and what was asked."""

import json
from typing import Any

from ops.commands import Result
from tests.unit.ops.fake_commands import FakeCommands

CALL = "docker compose exec -T gateway python -m gateway.call"
KEY: dict[str, Any] = {
    "id": "abcdefghij",
    "name": "alice [x]",
    "tenant": "web",
    "state": "active",
    "plan": None,
    "scopes": None,
    "models": None,
    "requests_per_minute": 120,
    "created_at": "2026-12-01T01:02:03.456789Z",
    "changed_at": "2026-12-01T01:02:03.456789Z",
    "expires_at": None,
    "disabled_at": None,
    "revoked_at": None,
    "previous_until": None,
    "last_used_at": None,
}
MADE = {**KEY, "key": "sk-gh-abcdefghij-secret"}


def said(status: int, body: Any) -> Result:
    """What `gateway.call` prints."""
    return Result(0, json.dumps({"status": status, "body": body}) + "\n")


def refused(status: int, message: str) -> Result:
    return said(status, {"error": {"message": message, "type": "x", "param": None, "code": "x"}})


class FakeAdmin:
    """Answers on scripted commands."""

    def __init__(self, commands: FakeCommands) -> None:
        self._commands = commands

    def on(self, call: str, *results: Result) -> None:
        """The answers to a method and path, with its query."""
        self._commands.on(f"{CALL} {call}", *results)

    def asked(self) -> list[str]:
        """Method and path of every call."""
        return [" ".join(call[-3:-1]) for call in self._commands.ran(CALL)]

    def bodies(self) -> list[Any]:
        """Every body that was sent."""
        return [json.loads(text) for text in self._commands.stdin if text]

    def actors(self) -> set[str]:
        """Who asked, as they said."""
        return {call[-1] for call in self._commands.ran(CALL)}
