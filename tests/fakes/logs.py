"""A log that a test can read."""

import io
from typing import Any

import orjson

from gateway.accesslog import make_logger


class LogLines:
    """A logger into memory, and what it wrote."""

    def __init__(self) -> None:
        self._written = io.BytesIO()
        self.logger = make_logger("info", self._written)

    def lines(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self._written.getvalue().splitlines()]
