"""A model arrives whole or not at all, from each source, over connections that break."""

import ast
import dataclasses
import errno
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.errors import OpsError
from ops.fetch import download
from ops.fetch.download import fetch_model
from ops.fetch.listing import Listing, RemoteFile
from ops.fetch.manifest import Manifest, Origin
from ops.fetch.modelscope import ModelScopeSource
from ops.fetch.place import Place, model_name, origin_of, present_model
from ops.fetch.progress import GIB, MIB, Progress, progress_text
from ops.fetch.sources import HubSource, LocalSource, Source
from tests.capabilities import ROOT
from tests.unit.ops.model_hubs import (
    COMMIT,
    LIBRARY_CHUNK,
    REPO,
    SHARD,
    WANTED,
    HubHandler,
    HubState,
    ModelScopeHandler,
    names,
    safetensors,
    serving,
    tiny_model,
    write_model,
)

ORIGIN = Origin("hub", REPO, "main")


@pytest.fixture
def hub() -> Iterator[tuple[HubState, str]]:
    state = HubState()
    with serving(HubHandler, state) as url:
        yield state, url


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "models", REPO)


class Said(list[str]):
    def __call__(self, line: str) -> None:
        self.append(line)


def hub_source(url: str, revision: str = "main") -> HubSource:
    return HubSource(REPO, revision, url, wait=lambda _: None)


def get(
    source: Source, place: Place, origin: Origin = ORIGIN, *, verify: bool = False
) -> tuple[Manifest, Said]:
    said = Said()
    return fetch_model(origin, source, place, said, verify=verify, workers=2), said


def refusal(source: Source, place: Place) -> OpsError:
    with pytest.raises(OpsError) as caught:
        get(source, place)
    assert Manifest.read(place.target) is None
    return caught.value


def test_a_hub_model_arrives_with_only_the_needed_files_and_its_commit(
    hub: tuple[HubState, str], place: Place
) -> None:
    state, url = hub
    manifest, _ = get(hub_source(url), place)
    assert names(place.target) == WANTED
    assert all((place.target / name).read_bytes() == state.files[name] for name in WANTED)
    recorded = json.loads((place.target / "gatehouse-model.json").read_text())
    assert (recorded["source"], recorded["repo"], recorded["revision"]) == ("hub", REPO, "main")
    assert recorded["commit"] == manifest.commit == COMMIT
    assert {len(f["sha256"]) for f in recorded["files"]} == {64}
    assert not list((place.root / ".incoming").iterdir())


def test_files_are_readable_by_another_user(hub: tuple[HubState, str], place: Place) -> None:
    get(hub_source(hub[1]), place)
    assert place.target.stat().st_mode & 0o777 == 0o755
    assert {p.stat().st_mode & 0o777 for p in place.target.iterdir()} == {0o644}


def test_a_complete_model_is_left_alone_without_the_network(hub: tuple[HubState, str], place: Place) -> None:
    first, _ = get(hub_source(hub[1]), place)
    asked = len(hub[0].requests)
    again, said = get(hub_source("http://127.0.0.1:9"), place)
    assert again == first
    assert said == []
    assert len(hub[0].requests) == asked


def test_pinning_the_recorded_commit_fetches_nothing(hub: tuple[HubState, str], place: Place) -> None:
    first, _ = get(hub_source(hub[1]), place)
    pinned, said = get(hub_source("http://127.0.0.1:9", COMMIT), place, Origin("hub", REPO, COMMIT))
    assert pinned == first
    assert said == []


def test_a_broken_connection_goes_on_where_it_stopped(hub: tuple[HubState, str], place: Place) -> None:
    state, url = hub
    state.files[SHARD] = safetensors({"a": 25_000_000})
    state.cut_after[SHARD] = 20_000_000
    get(hub_source(url), place)
    assert f"bytes={LIBRARY_CHUNK}-" in state.fetched(SHARD)
    assert (place.target / SHARD).read_bytes() == state.files[SHARD]


def test_a_partial_file_of_an_earlier_run_is_continued(hub: tuple[HubState, str], place: Place) -> None:
    state, url = hub
    listing = hub_source(url).listing()
    staging = place.staging(listing)
    staging.mkdir(parents=True)
    (staging / f"{SHARD}.incomplete").write_bytes(state.files[SHARD][:123_456])
    (staging / "tokenizer.json").write_bytes(state.files["tokenizer.json"])
    get(hub_source(url), place)
    assert set(state.fetched(SHARD)) == {"bytes=123456-"}
    assert state.fetched("tokenizer.json") == []


def test_a_partial_file_with_wrong_bytes_is_thrown_away_and_fetched_whole(
    hub: tuple[HubState, str], place: Place
) -> None:
    state, url = hub
    staging = place.staging(hub_source(url).listing())
    staging.mkdir(parents=True)
    (staging / f"{SHARD}.incomplete").write_bytes(b"x" * 5000)
    _, said = get(hub_source(url), place)
    assert (place.target / SHARD).read_bytes() == state.files[SHARD]
    assert any("thrown away" in line for line in said)


@pytest.mark.parametrize("name", [SHARD, "config.json"], ids=["by SHA-256", "by git's SHA-1"])
def test_a_file_that_always_arrives_damaged_is_refused(
    hub: tuple[HubState, str], place: Place, name: str
) -> None:
    state, url = hub
    body = bytearray(state.files[name])
    body[-1] ^= 1
    state.serve_instead[name] = bytes(body)
    assert name in refusal(hub_source(url), place).message


def test_passing_failures_of_the_hub_are_waited_out(hub: tuple[HubState, str], place: Place) -> None:
    hub[0].passing_failures = 3
    get(hub_source(hub[1]), place)
    assert present_model(ORIGIN, place).commit == COMMIT


def test_lasting_failures_end(hub: tuple[HubState, str], place: Place) -> None:
    hub[0].status_for_api = 503
    assert "503" in refusal(hub_source(hub[1]), place).message


@pytest.mark.parametrize(
    ("change", "message", "fix"),
    [
        ({"gated": True}, "gated", "HF_TOKEN"),
        ({"repo": "Qwen/other"}, "has no model Qwen/tiny", "MODEL_REPO"),
        ({"revisions": ("v1",)}, "no revision main", "MODEL_REVISION"),
        ({"status_for_api": 401}, "401", "HF_TOKEN"),
        ({"status_for_api": 403}, "403", "HF_TOKEN"),
        ({"status_for_api": 429}, "429", "Wait"),
        ({"files": {"config.json": b"{}", "pytorch_model.bin": b"pickle"}}, "no *.safetensors", "MODEL_REPO"),
    ],
)
def test_refusals_of_the_hub_say_the_fix(
    hub: tuple[HubState, str], place: Place, change: dict[str, Any], message: str, fix: str
) -> None:
    for name, value in change.items():
        setattr(hub[0], name, value)
    error = refusal(hub_source(hub[1]), place)
    assert message in error.message
    assert fix in error.fix


def test_no_network_is_said_so(place: Place) -> None:
    error = refusal(hub_source("http://127.0.0.1:9"), place)
    assert "cannot be reached" in error.message
    assert "HF_ENDPOINT" in error.fix


def test_a_page_instead_of_an_api_is_said_so(place: Place) -> None:
    class Page(HubHandler):
        def do_GET(self) -> None:  # noqa: N802 - http.server finds it by this name
            self.answer(200, b"<!doctype html><html>sign in</html>", {"Content-Type": "text/html"})

    with serving(Page, HubState()) as url:
        assert "does not answer like a model hub" in refusal(hub_source(url), place).message


def test_a_full_disk_is_seen_before_the_first_byte(hub: tuple[HubState, str], place: Place) -> None:
    source = hub_source(hub[1])
    listing = source.listing()

    class Huge:
        def listing(self) -> Any:
            files = tuple(dataclasses.replace(f, size=1 << 60) for f in listing.files)
            return dataclasses.replace(listing, files=files)

        def fetch(self, *_: object) -> None:
            raise AssertionError("nothing may be fetched")

    error = refusal(Huge(), place)
    assert "are free at" in error.message
    assert "MODEL_DIR" in error.fix


def test_a_new_revision_replaces_the_old_and_keeps_equal_files(
    hub: tuple[HubState, str], place: Place
) -> None:
    state, url = hub
    get(hub_source(url), place)
    before = len(state.fetched(SHARD))
    state.files["config.json"] = b'{"model_type": "qwen3"}'
    state.revisions = ("main", "v2", COMMIT)
    get(hub_source(url, "v2"), place, Origin("hub", REPO, "v2"))
    assert (place.target / "config.json").read_bytes() == state.files["config.json"]
    assert len(state.fetched(SHARD)) == before
    assert not list((place.root / ".incoming").iterdir())


def test_parts_of_another_revision_do_not_stay(hub: tuple[HubState, str], place: Place) -> None:
    stale = place.root / ".incoming" / "Qwen--tiny.0000000000000000"
    stale.mkdir(parents=True)
    (stale / "x.incomplete").write_bytes(b"x")
    get(hub_source(hub[1]), place)
    assert not stale.exists()


def test_verify_finds_a_flipped_bit_and_repairs_only_that_file(
    hub: tuple[HubState, str], place: Place
) -> None:
    state, url = hub
    get(hub_source(url), place)
    shard = place.target / SHARD
    shard.write_bytes(b"\0" + state.files[SHARD][1:])
    other = "model-00002-of-00002.safetensors"
    before = len(state.fetched(other))
    unseen, _ = get(hub_source(url), place)
    assert unseen.problems(place.target, hashes=False) == []
    _, said = get(hub_source(url), place, verify=True)
    assert shard.read_bytes() == state.files[SHARD]
    assert any(line.startswith("damaged: ") and SHARD in line for line in said)
    assert len(state.fetched(other)) == before


def test_two_fetches_at_once_are_refused(hub: tuple[HubState, str], place: Place) -> None:
    with download._alone(place.root):
        assert "Another" in refusal(hub_source(hub[1]), place).message


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        (SHARD, b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "LFS pointer"),
        (SHARD, b"<!DOCTYPE html><html></html>", "HTML"),
        (SHARD, b"short", "not a safetensors"),
        (SHARD, safetensors({"a": 300_000})[:-7], "not the"),
        (SHARD, (6).to_bytes(8, "little") + b"nojson", "broken safetensors header"),
        (SHARD, safetensors({"c": 8}), "says a is in"),
        ("config.json", b"{", "not valid JSON"),
        ("model.safetensors.index.json", b"[]", "no weight_map"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "gone.safetensors"}}', "missing"),
    ],
)
def test_what_is_not_a_model_is_refused(
    tmp_path: Path, place: Place, name: str, body: bytes, message: str
) -> None:
    directory = write_model(tmp_path / "disk", {**tiny_model(), name: body})
    assert message in refusal(LocalSource(directory), place).message


def test_a_model_without_config_is_refused(tmp_path: Path, place: Place) -> None:
    files = {name: body for name, body in tiny_model().items() if name != "config.json"}
    assert "config.json" in refusal(LocalSource(write_model(tmp_path / "disk", files)), place).message


def test_a_local_directory_with_links_is_copied(tmp_path: Path, place: Place) -> None:
    blobs = write_model(tmp_path / "blobs", tiny_model())
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)
    manifest, _ = get(LocalSource(snapshot), place, Origin("local", REPO, ""))
    assert names(place.target) == WANTED
    assert manifest.commit is None
    assert not any(path.is_symlink() for path in place.target.iterdir())


def test_a_local_copy_goes_on_from_a_partial_file(tmp_path: Path, place: Place) -> None:
    directory = write_model(tmp_path / "disk", tiny_model())
    source = LocalSource(directory)
    staging = place.staging(source.listing())
    staging.mkdir(parents=True)
    (staging / f"{SHARD}.incomplete").write_bytes(tiny_model()[SHARD][:1000])
    get(source, place, Origin("local", REPO, ""))
    assert (place.target / SHARD).read_bytes() == tiny_model()[SHARD]


def test_a_missing_local_directory_is_named(tmp_path: Path, place: Place) -> None:
    error = refusal(LocalSource(tmp_path / "nowhere"), place)
    assert "nowhere" in error.message
    assert "MODEL_LOCAL_DIR" in error.fix


@pytest.fixture
def modelscope() -> Iterator[tuple[HubState, str]]:
    state = HubState()
    with serving(ModelScopeHandler, state) as url:
        yield state, url


def test_a_modelscope_model_arrives_verified(modelscope: tuple[HubState, str], place: Place) -> None:
    state, url = modelscope
    manifest, _ = get(ModelScopeSource(REPO, "master", url), place, Origin("modelscope", REPO, "master"))
    assert names(place.target) == WANTED
    assert all((place.target / name).read_bytes() == state.files[name] for name in WANTED)
    assert manifest.commit is None
    assert len(manifest.digest) == 64


def test_a_modelscope_file_goes_on_from_a_partial_file(
    modelscope: tuple[HubState, str], place: Place
) -> None:
    state, url = modelscope
    source = ModelScopeSource(REPO, "master", url)
    staging = place.staging(source.listing())
    staging.mkdir(parents=True)
    (staging / f"{SHARD}.incomplete").write_bytes(state.files[SHARD][:77_000])
    get(source, place, Origin("modelscope", REPO, "master"))
    ranges = [rng for path, rng in state.requests if SHARD in path]
    assert ranges == ["bytes=77000-"]


@pytest.mark.parametrize(
    ("status", "message", "fix"),
    [(404, "has no model", "MODEL_REPO"), (403, "does not let", "TOKEN"), (401, "does not let", "TOKEN")],
)
def test_refusals_of_modelscope_say_the_fix(
    modelscope: tuple[HubState, str], place: Place, status: int, message: str, fix: str
) -> None:
    modelscope[0].status_for_api = status
    error = refusal(ModelScopeSource(REPO, "master", modelscope[1]), place)
    assert message in error.message
    assert fix in error.fix


def test_modelscope_that_cannot_be_reached_is_said_so(place: Place) -> None:
    error = refusal(ModelScopeSource(REPO, "master", "http://127.0.0.1:9"), place)
    assert "cannot be reached" in error.message
    assert "MODEL_SOURCE=hub" in error.fix


def test_modelscope_content_that_is_not_what_it_lists_is_refused(
    modelscope: tuple[HubState, str], place: Place
) -> None:
    modelscope[0].serve_instead["config.json"] = b"{}"
    error = refusal(ModelScopeSource(REPO, "master", modelscope[1]), place)
    assert "other bytes than it lists" in error.message


@pytest.mark.parametrize(
    ("error", "message", "fix"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk is full", "goes on where it stopped"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/models/x"),
            "/models/x cannot be written",
            "owns",
        ),
        (OSError(errno.EIO, "Input/output error"), "Input/output error", "make model"),
    ],
)
def test_a_disk_that_does_not_take_the_model_is_said_so(
    hub: tuple[HubState, str], place: Place, error: OSError, message: str, fix: str
) -> None:
    source = hub_source(hub[1])

    class Failing:
        def listing(self) -> Listing:
            return source.listing()

        def fetch(self, file: RemoteFile, listing: Listing, target: Path) -> None:
            raise error

    found = refusal(Failing(), place)
    assert message in found.message
    assert fix in found.fix


@pytest.mark.parametrize(
    ("done", "total", "speed", "text"),
    [
        (0, 10 * GIB, 0, "0.0 MiB of 10.0 GiB (0 %), 0.0 MiB/s"),
        (5 * GIB, 10 * GIB, 64 * MIB, "5.0 GiB of 10.0 GiB (50 %), 64.0 MiB/s, 80 s left"),
        (1 * GIB, 10 * GIB, 16 * MIB, "1.0 GiB of 10.0 GiB (10 %), 16.0 MiB/s, 10 min left"),
        (0, 0, 0, "0.0 MiB of 0.0 MiB (100 %), 0.0 MiB/s"),
    ],
)
def test_progress_is_one_line(done: int, total: int, speed: float, text: str) -> None:
    assert progress_text(done, total, speed) == text


def test_progress_is_said_while_files_grow(tmp_path: Path) -> None:
    said = Said()
    (tmp_path / "x.incomplete").write_bytes(b"x" * MIB)
    with Progress(tmp_path, 2 * MIB, said, interval=0.02):
        deadline = time.monotonic() + 5
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
    assert said[0].startswith("1.0 MiB of 2.0 MiB (50 %)")


def test_the_environment_says_what_to_fetch() -> None:
    assert origin_of({}, REPO) == Origin("hub", REPO, "main")
    assert origin_of({"MODEL_REPO": "a/b", "MODEL_REVISION": "v1"}, REPO) == Origin("hub", "a/b", "v1")
    assert origin_of({"MODEL_SOURCE": "modelscope", "MODEL_REVISION": "main"}, REPO).revision == "master"
    assert origin_of({"MODEL_SOURCE": "local", "MODEL_REVISION": "x"}, REPO).revision == ""
    with pytest.raises(OpsError, match="MODEL_SOURCE=ftp"):
        origin_of({"MODEL_SOURCE": "ftp"}, REPO)


@pytest.mark.parametrize(
    "line", ["model: /models/Qwen/tiny", "model:  '/models/Qwen/tiny'  # why", 'model: "/models/Qwen/tiny/"']
)
def test_the_profile_says_where_the_model_belongs(tmp_path: Path, line: str) -> None:
    profile = tmp_path / "p.yaml"
    profile.write_text(f"# model: /models/x\n{line}\ndtype: half\n")
    assert model_name(profile) == REPO


@pytest.mark.parametrize(
    "line", ["", "model: Qwen/tiny", "model: /models", "model: /models/../etc", "  model: /models/a"]
)
def test_a_profile_without_a_model_below_the_root_is_refused(tmp_path: Path, line: str) -> None:
    profile = tmp_path / "p.yaml"
    profile.write_text(line)
    with pytest.raises(OpsError, match="names no model"):
        model_name(profile)


def test_the_profiles_of_the_project_name_their_models() -> None:
    names = {model_name(path) for path in (ROOT / "vllm" / "profiles").glob("*.yaml")}
    assert names == {"Qwen/Qwen2.5-14B-Instruct-AWQ", "Qwen/Qwen2.5-14B-Instruct"}


def test_another_origin_is_not_taken_for_the_one_asked(hub: tuple[HubState, str], place: Place) -> None:
    get(hub_source(hub[1]), place)
    with pytest.raises(OpsError, match=r"not what \.env asks for"):
        present_model(Origin("hub", REPO, "v2"), place)


def test_the_fetching_part_needs_only_what_its_image_holds() -> None:
    """The `model` image has the standard library and the group `model` with what its two libraries bring."""
    brought = {"huggingface_hub", "modelscope_hub", "httpx2", "requests"}
    imported = set()
    for path in (ROOT / "ops" / "fetch").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    own = {name for name in imported if name == "ops.errors" or name.startswith("ops.fetch")}
    assert {name.split(".")[0] for name in imported - own} <= brought | set(sys.stdlib_module_names)
