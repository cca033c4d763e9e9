"""`python -m gateway`: reads the configuration and serves. Exit code 2: it cannot start as configured."""

import asyncio
import os
import sys

import uvloop
from prometheus_client import disable_created_metrics

from gateway.accesslog import AccessLog, make_logger, route_library_logs
from gateway.server import serve
from gateway.settings import Configuration, ConfigurationError


def main() -> int:
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for every counter and histogram, and nobody reads it
    try:
        configuration = Configuration.load(os.environ)
        level = configuration.settings.log_level
        route_library_logs(level)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            out = sys.stdout.buffer
            runner.run(serve(configuration, make_logger(level, out), AccessLog(out)))
    except ConfigurationError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
