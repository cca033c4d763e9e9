"""`python -m ops.fetch`: fetches the model that the environment names.

Exit codes: 0 the model is there, 1 it is not (one line says why and what to do), 2 wrong arguments,
130 interrupted.
Environment: MODEL_PROFILE (the engine's profile: its `model:` says where below MODEL_DIR the model belongs
and, unless MODEL_REPO says otherwise, which repository it is), MODEL_SOURCE (hub, modelscope, local),
MODEL_REVISION, MODEL_LOCAL_DIR, HF_ENDPOINT, HF_TOKEN, MODELSCOPE_ENDPOINT, MODELSCOPE_API_TOKEN.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ops.errors import OpsError
from ops.fetch.manifest import Manifest, Origin
from ops.fetch.place import Place, model_name, origin_of, present_model

if TYPE_CHECKING:
    from ops.fetch.sources import Source

HUGGING_FACE = "https://huggingface.co"
MODELSCOPE = "https://www.modelscope.cn"
INTERRUPTED = 130
_ENDPOINTS = ("HF_ENDPOINT", "MODELSCOPE_ENDPOINT")
# Read by the libraries at import: no bars (progress is ours), no calls home, one stream for each file.
_LIBRARY_SETTINGS = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_DISABLE_XET": "1",
    "TQDM_DISABLE": "1",
    "MODELSCOPE_DOWNLOAD_PARALLEL_WORKERS": "1",
    "MODELSCOPE_DOWNLOAD_TOTAL_TIMEOUT": "86400",
    "MODELSCOPE_DOWNLOAD_FILE_LOCK": "false",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="ops.fetch", description="Fetch the model that the environment names."
    )
    parser.add_argument(
        "--verify", action="store_true", help="compare every hash of a model that is there already"
    )
    parser.add_argument(
        "--check", action="store_true", help="only say whether the model is there; fetch nothing"
    )
    options = parser.parse_args(arguments)
    for name, value in _LIBRARY_SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in _ENDPOINTS:
        # Compose passes what .env leaves out as empty, which the libraries take for an address.
        if not os.environ.get(name):
            os.environ.pop(name, None)
    try:
        manifest = _run(os.environ, check=options.check, verify=options.verify)
    except OpsError as error:
        say(f"{error.message} {error.fix}")
        return 1
    except KeyboardInterrupt:
        say("stopped. Run `make model` again: it goes on where it stopped.")
        return INTERRUPTED
    say(f"{manifest.origin.repo} is complete: {manifest.commit or manifest.digest}")
    return 0


def say(line: str) -> None:
    print(f"model: {line}", flush=True)


def _run(environ: Mapping[str, str], *, check: bool, verify: bool) -> Manifest:
    name = model_name(Path(environ.get("MODEL_PROFILE") or "/etc/gatehouse/profile.yaml"))
    origin = origin_of(environ, name)
    place = Place(Path(environ.get("MODEL_DIR") or "/models"), name)
    if check:
        return present_model(origin, place)
    from ops.fetch.download import fetch_model  # noqa: PLC0415 - the libraries read their settings here

    return fetch_model(origin, _source(environ, origin), place, say, verify=verify)


def _source(environ: Mapping[str, str], origin: Origin) -> "Source":
    if origin.source == "local":
        from ops.fetch.sources import LocalSource  # noqa: PLC0415 - as above

        return LocalSource(Path(environ.get("MODEL_LOCAL_DIR") or "/source"))
    if origin.source == "modelscope":
        from ops.fetch.modelscope import ModelScopeSource  # noqa: PLC0415 - not loaded for the hub

        return ModelScopeSource(
            origin.repo, origin.revision, environ.get("MODELSCOPE_ENDPOINT") or MODELSCOPE
        )
    from ops.fetch.sources import HubSource  # noqa: PLC0415 - as above

    return HubSource(origin.repo, origin.revision, environ.get("HF_ENDPOINT") or HUGGING_FACE)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Not sys.exit: it would wait for downloads in other threads. Nothing is lost, files are resumable.
    os._exit(code)
