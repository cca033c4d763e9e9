"""`make up`: checks, gets what is missing, starts the stack and shows how the engine loads."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from ops import phases, preflight
from ops.docker import Docker, explain, images, wants_gpu
from ops.errors import OpsError
from ops.modelfiles import check_model_present
from ops.site import Site

_TAIL = 15
_POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The clock of the wait, for tests. `limit` is in seconds; None waits as long as the engine loads."""

    now: Callable[[], float] = time.monotonic
    poll: float = _POLL_SECONDS
    limit: float | None = None


def up(site: Site, *, wait: bool = True, build: bool = False, pace: Pace | None = None) -> None:
    """Starts the stack, or completes it. Never fetches a model. Raises OpsError."""
    docker = Docker(site.commands)
    info = docker.check()
    variables = preflight.check_files(site)
    profile = site.profile(variables)
    config = docker.config()
    tag = variables.get("VLLM_VERSION") or "v0.32.0"
    preflight.check_gpu(site.commands, config, info, profile, tag)
    preflight.check_ports(site.commands, config, docker.published_by(preflight.project_of(config)))
    _get_images(site, docker, config, build=build)
    if wants_gpu(config, preflight.ENGINE):
        check_model_present(site, docker, variables, profile)
    site.say("starting the stack")
    if docker.compose("up", "--detach", "--remove-orphans") != 0:
        # It has shown its own output; once more, captured, to say what the error means.
        again = docker.capture("up", "--detach", "--no-recreate")
        if not again.ok:
            raise explain(again, "docker compose up -d")
    if wait:
        _wait(site, docker, pace or Pace())


def _get_images(site: Site, docker: Docker, config: dict[str, object], *, build: bool) -> None:
    pulled, built = images(config)
    for image in pulled:
        if not docker.has_image(image):
            site.say(f"pulling {image}")
            docker.pull(image)
    absent = [service for service, image in built.items() if build or not docker.has_image(image)]
    if absent:
        site.say(f"building the image for {', '.join(absent)}")
        docker.build(absent)


def _wait(site: Site, docker: Docker, pace: Pace) -> None:
    site.say("waiting for the engine; Ctrl-C stops only the waiting")
    try:
        with docker.follow_logs(preflight.ENGINE, 200) as lines:
            found = _watch(site, docker, _pumped(lines), pace)
    except KeyboardInterrupt:
        site.say("the stack keeps running: `make status` shows how far it is")
        return
    if isinstance(found, phases.Ready):
        site.say('ready. Next: make keys ARGS="create --name alice"')
        return
    if isinstance(found, phases.Failed):
        log = docker.last_log(preflight.ENGINE, 200)
        for line in log[-_TAIL:]:
            site.say(f"  | {line}")
        raise OpsError(found.reason, phases.hint_for(log))
    raise OpsError(
        "The engine is not ready in time.", "It goes on loading: see `make status` and `make logs`."
    )


def _watch(
    site: Site, docker: Docker, lines: "queue.SimpleQueue[str]", pace: Pace
) -> phases.Loading | phases.Ready | phases.Failed:
    started, said = pace.now(), ""
    restarts = docker.restarts(preflight.ENGINE)
    while True:
        for line in _new(lines):
            phase = phases.phase_of(line)
            if phase and phase != said:
                site.say(f"engine: {phase}")
                said = phase
        containers = {c.service: c for c in docker.containers()}
        found = phases.outcome(containers.get(preflight.ENGINE), docker.restarts(preflight.ENGINE) - restarts)
        if not isinstance(found, phases.Loading):
            return found
        if pace.limit is not None and pace.now() - started >= pace.limit:
            return found
        time.sleep(pace.poll)


def _pumped(lines: Iterator[str]) -> "queue.SimpleQueue[str]":
    """The lines through a queue, because reading the next one blocks while the engine is silent."""
    pumped: queue.SimpleQueue[str] = queue.SimpleQueue()

    def pump() -> None:
        with suppress(ValueError):  # the log is closed under this reader when the waiting ends
            for line in lines:
                pumped.put(line.rstrip("\n"))

    threading.Thread(target=pump, name="engine-log", daemon=True).start()
    return pumped


def _new(lines: "queue.SimpleQueue[str]") -> Iterator[str]:
    while True:
        try:
            yield lines.get_nowait()
        except queue.Empty:
            return
