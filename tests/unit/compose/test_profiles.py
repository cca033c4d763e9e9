from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.settings import EngineProfile, UpstreamList
from tests.unit.compose.files import ROOT, example, services

PROFILES = sorted((ROOT / "vllm/profiles").glob("*.yaml"))
EVERY = pytest.mark.parametrize("path", PROFILES, ids=[path.stem for path in PROFILES])


def profile(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def test_the_first_hosts_have_their_values() -> None:
    assert {path.stem: profile(path) for path in PROFILES} == {
        "single-3090-awq": {
            "model": "/models/Qwen/Qwen2.5-14B-Instruct-AWQ",
            "served-model-name": "qwen2.5-14b-instruct-awq",
            "dtype": "half",
            "max-model-len": 8192,
            "max-num-seqs": 4,
            "gpu-memory-utilization": 0.90,
            "generation-config": "auto",
        },
        "dual-3090-bf16": {
            "model": "/models/Qwen/Qwen2.5-14B-Instruct",
            "served-model-name": "qwen2.5-14b-instruct",
            "dtype": "bfloat16",
            "tensor-parallel-size": 2,
            "max-model-len": 32768,
            "max-num-seqs": 64,
            "gpu-memory-utilization": 0.92,
            "generation-config": "auto",
        },
    }


@EVERY
def test_a_profile_names_no_kernel_and_no_key(path: Path) -> None:
    assert not {"quantization", "api-key", "host", "port"} & set(profile(path))


@EVERY
def test_every_line_of_a_profile_has_its_reason(path: Path) -> None:
    blocks = path.read_text().split("\n\n")
    for block in blocks:
        *reason, last = block.strip().splitlines()
        if not last.startswith("#"):
            assert reason, last
            assert all(line.startswith("#") for line in reason), block


@EVERY
def test_the_gateway_reads_a_profile(path: Path) -> None:
    read = EngineProfile.model_validate(profile(path))
    assert read.max_model_len == profile(path)["max-model-len"]
    assert read.served_model_name == (profile(path)["served-model-name"],)


def test_the_example_selects_a_profile_that_exists() -> None:
    assert example()["GATEHOUSE_PROFILE"] in {path.stem for path in PROFILES}


def test_the_stand_in_answers_to_every_profiles_name() -> None:
    command = services("compose.standin.yaml")["vllm"]["command"]
    names = command[command.index("--served-model-name") + 1 :]
    assert set(names) == {profile(path)["served-model-name"] for path in PROFILES}


@pytest.mark.parametrize(
    ("file", "engines"), [("upstreams.yaml", ["vllm"]), ("upstreams.gpu2.yaml", ["vllm", "vllm-replica"])]
)
def test_the_upstreams_are_the_stacks_engines(file: str, engines: list[str]) -> None:
    upstreams = UpstreamList.model_validate(yaml.safe_load((ROOT / "gateway" / file).read_text())).upstreams
    assert [upstream.name for upstream in upstreams] == engines
    assert [upstream.base for upstream in upstreams] == [f"http://{name}:8000" for name in engines]
