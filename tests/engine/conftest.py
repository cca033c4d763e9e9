"""A real gateway process in front of a real vLLM on the CPU, one version after the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.subject import Subject, plan, settings
from tests.engine.vllm_process import VllmProcess
from tests.fakes.gateway_process import EnginePlan, GatewayProcess, Key

pytest.register_assert_rewrite(
    "tests.contract.developer", "tests.contract.dialects", "tests.contract.refusals"
)

VERSIONS = ("0.32.0", "0.16.0")
MODEL = "tiny-qwen2"
MAX_MODEL_LEN = 2048
OUTPUT_CAP = 600
ENGINE_KEY = "real-engine-key-5b0f8c21e97d46a3"
IDLE_SECONDS = 3.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            # The first test of a version waits for its start.
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(
    scope="session",
    params=[pytest.param(version, marks=pytest.mark.requires(f"vllm-{version}")) for version in VERSIONS],
)
def vllm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmProcess]:
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    process = VllmProcess(request.param, log, key=ENGINE_KEY, model=MODEL)
    try:
        process.start()
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="session")
def gateway(vllm: VllmProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    engine = EnginePlan(vllm.url, vllm.key, [vllm.model], MAX_MODEL_LEN)
    timeouts = {"GATEWAY_FIRST_BYTE_TIMEOUT": "30", "GATEWAY_IDLE_TIMEOUT": str(IDLE_SECONDS)}
    home = tmp_path_factory.mktemp("gateway")
    process = GatewayProcess(home, engine, settings(MODEL) | timeouts, plan(OUTPUT_CAP))
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="session")
def key(gateway: GatewayProcess) -> Key:
    return gateway.new_key()


@pytest.fixture
def subject(gateway: GatewayProcess, key: Key, vllm: VllmProcess) -> Iterator[Subject]:
    vllm.ensure_started()
    counts_messages = vllm.version != "0.16.0"
    made = Subject(gateway, key, vllm, MODEL, MAX_MODEL_LEN, OUTPUT_CAP, counts_messages)
    yield made
    made.close()
