"""Other programs, scripted: answers by the longest matching beginning of the command line."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ops.commands import Result


class FakeCommands:
    """A `Commands`. A list of answers is given one after the other, its last one for ever."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.stdin: list[str | None] = []
        self.environs: list[Mapping[str, str]] = []
        self._script: dict[tuple[str, ...], list[Result | type[BaseException]]] = {}
        self.log: Iterable[str] = []

    def on(
        self,
        command: str,
        *results: Result | type[BaseException],
        out: str = "",
        err: str = "",
        code: int = 0,
    ) -> None:
        """The answer to every command line that begins with `command`."""
        self._script[tuple(command.split())] = list(results) or [Result(code, out, err)]

    def on_json(self, command: str, value: Any) -> None:
        self.on(command, out=json.dumps(value))

    def ran(self, command: str) -> list[list[str]]:
        """The calls that begin with `command`."""
        words = command.split()
        return [call for call in self.calls if call[: len(words)] == words]

    def run(self, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60) -> Result:
        self.stdin.append(stdin)
        return self._answer(argv)

    def show(self, argv: Sequence[str]) -> Result:
        return self._answer(argv)

    def attach(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
        self.environs.append(environ or {})
        return self._answer(argv).code

    @contextmanager
    def follow(self, argv: Sequence[str]) -> Iterator[Iterator[str]]:
        self.calls.append(list(argv))
        yield iter(self.log)

    def _answer(self, argv: Sequence[str]) -> Result:
        self.calls.append(list(argv))
        for length in range(len(argv), 0, -1):
            answers = self._script.get(tuple(argv[:length]))
            if answers:
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                if isinstance(answer, type):
                    raise answer
                return answer
        raise AssertionError(f"not scripted: {' '.join(argv)}")


# As the real programs write them.
NO_COMMAND = Result(127, err="docker: not found")
DAEMON_DOWN = Result(
    1,
    err="Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\n",
)
NOT_ALLOWED = Result(
    1,
    err="permission denied while trying to connect to the Docker daemon socket at "
    'unix:///var/run/docker.sock: Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.50/info": '
    "dial unix /var/run/docker.sock: connect: permission denied\n",
)
NO_COMPOSE = Result(
    1, err="docker: unknown command: docker compose\n\nRun 'docker --help' for more information\n"
)
TWO_3090 = "NVIDIA GeForce RTX 3090, 24576, 580.95.05\nNVIDIA GeForce RTX 3090, 24576, 580.95.05\n"
ONE_3090 = "NVIDIA GeForce RTX 3090, 24576, 580.95.05\n"
NO_DRIVER = Result(
    9,
    out="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n",
)
