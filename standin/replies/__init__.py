"""Captured replies of real engines, and their reader."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parent
VERSION = "0.32.0"


@dataclass(frozen=True)
class ErrorReply:
    """An error as the engine sends it: HTTP status and JSON body."""

    status: int
    body: dict[str, Any]

    def with_message(self, message: str, **fields: object) -> "ErrorReply":
        """The same error with another message, and with other fields of its `error` object."""
        return ErrorReply(self.status, {"error": {**self.body["error"], "message": message, **fields}})


@dataclass(frozen=True)
class Captures:
    """The captured replies of one engine version.

    `streams` holds each captured stream as its list of JSON events, `data: [DONE]` left out.
    """

    bodies: Mapping[str, dict[str, Any]]
    streams: Mapping[str, list[dict[str, Any]]]
    errors: Mapping[str, ErrorReply]
    metrics: str


def load(version: str = VERSION) -> Captures:
    """Read the captures of `version`. Raises FileNotFoundError where there are none."""
    folder = CAPTURES / f"v{version}"
    errors = json.loads((folder / "errors.json").read_text())
    return Captures(
        bodies={path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")},
        streams={path.stem: stream_events(path.read_bytes()) for path in folder.glob("*.sse")},
        errors={name: ErrorReply(reply["status"], reply["body"]) for name, reply in errors.items()},
        metrics=(folder / "metrics.txt").read_text(),
    )


def stream_events(stream: bytes) -> list[dict[str, Any]]:
    """The JSON data of an event stream's events, without the closing `data: [DONE]`."""
    data = (event.partition(b"data: ")[2] for event in stream.split(b"\n\n") if event)
    return [json.loads(one) for one in data if one != b"[DONE]"]
