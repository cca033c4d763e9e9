"""`python -m standin`: serve the stand-in engine until SIGTERM or SIGINT."""

import argparse
import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from standin.app import Engine
from standin.config import DEFAULT_MODEL, EngineConfig
from standin.replies import load
from standin.text import DEFAULT_TOKENS

# vLLM ends what is in flight at once; a second lets the last events out.
SHUTDOWN_SECONDS = 1


class Server(uvicorn.Server):
    """Writes the ready file once it accepts, and exits 0 on a signal instead of raising it again."""

    def __init__(self, config: uvicorn.Config, ready_file: Path | None) -> None:
        super().__init__(config)
        self._ready_file = ready_file

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self._ready_file and sockets and not self.should_exit:
            written = self._ready_file.with_suffix(".part")
            written.write_text(json.dumps({"port": sockets[0].getsockname()[1], "pid": os.getpid()}))
            written.rename(self._ready_file)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        signals = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def arguments() -> argparse.ArgumentParser:
    """The command line; the options that vLLM has too carry its names."""
    parser = argparse.ArgumentParser(prog="python -m standin", description="A stand-in for vLLM 0.32.0.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any free port")
    parser.add_argument("--api-key-file", type=Path, help="file that holds the key; without it /v1 is open")
    parser.add_argument("--served-model-name", nargs="+", default=[DEFAULT_MODEL], metavar="NAME")
    parser.add_argument("--tokens", type=int, default=DEFAULT_TOKENS, help="completion tokens of an answer")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each token")
    parser.add_argument("--max-model-len", type=int, default=8192, help="context length in tokens")
    parser.add_argument("--embeddings", action="store_true", help="serve /v1/embeddings")
    parser.add_argument("--ready-file", type=Path, help='JSON file {"port", "pid"}, written once it accepts')
    return parser


def main() -> None:
    """Parse the command line and serve."""
    options = arguments().parse_args()
    config = EngineConfig(
        served_model_names=tuple(options.served_model_name),
        tokens=options.tokens,
        delay=options.delay,
        api_key=options.api_key_file.read_text().strip() if options.api_key_file else None,
        max_model_len=options.max_model_len,
        embeddings=options.embeddings,
    )
    listening = socket.create_server((options.host, options.port), backlog=1024)
    server = Server(
        uvicorn.Config(
            Engine(config, load()),
            lifespan="off",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        ),
        options.ready_file,
    )
    server.run(sockets=[listening])


if __name__ == "__main__":
    main()
