"""A real gateway process in front of the fake engine."""

from collections.abc import Callable, Iterator, Mapping

import pytest

from standin.config import EngineConfig
from tests.contract.subject import Subject, plan, settings
from tests.fakes import scenarios
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway_process import EnginePlan, GatewayProcess, Key

pytest.register_assert_rewrite(
    "tests.contract.developer", "tests.contract.dialects", "tests.contract.refusals"
)

MODEL = "served-model"
MAX_MODEL_LEN = 2048
OUTPUT_CAP = 600
ENGINE_KEY = "engine-key-3f9c27d1b8e64a5097aa61"
FIRST_BYTE_SECONDS = 1.5
IDLE_SECONDS = 1.0

StartGateway = Callable[..., GatewayProcess]


@pytest.fixture(scope="session")
def fake_engine() -> Iterator[FakeEngine]:
    config = EngineConfig(
        served_model_names=(MODEL,), api_key=ENGINE_KEY, max_model_len=MAX_MODEL_LEN, tokens=40
    )
    # A pause that real engines have too: a client can leave before the end.
    engine = FakeEngine(config, scenarios.normal(delay=0.002))
    engine.start()
    yield engine
    engine.close()


@pytest.fixture
def engine(fake_engine: FakeEngine) -> Iterator[FakeEngine]:
    """The fake engine, behaving and with nothing seen; afterwards nothing may be left at work in it."""
    fake_engine.reset()
    yield fake_engine
    fake_engine.await_idle()


@pytest.fixture(scope="session")
def start_gateway(
    fake_engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartGateway]:
    """Starts gateways with settings and parts of the plan of their own; all are stopped at the end."""
    running: list[GatewayProcess] = []

    def start(
        *, url: str = fake_engine.url, parts: Mapping[str, object] | None = None, **changes: str
    ) -> GatewayProcess:
        gateway = GatewayProcess(
            tmp_path_factory.mktemp("gateway"),
            EnginePlan(url, ENGINE_KEY, [MODEL], MAX_MODEL_LEN),
            settings(MODEL) | changes,
            plan(OUTPUT_CAP) | dict(parts or {}),
        )
        gateway.start()
        running.append(gateway)
        return gateway

    yield start
    codes = [gateway.stop() for gateway in running if gateway.process.poll() is None]
    assert not any(codes), f"exit codes {codes}"


@pytest.fixture(scope="session")
def gateway(start_gateway: StartGateway) -> GatewayProcess:
    """The gateway that most tests share: short timeouts, no rate limit that they could meet."""
    return start_gateway(
        GATEWAY_FIRST_BYTE_TIMEOUT=str(FIRST_BYTE_SECONDS),
        GATEWAY_IDLE_TIMEOUT=str(IDLE_SECONDS),
        GATEWAY_CONNECT_TIMEOUT="1",
    )


@pytest.fixture(scope="session")
def key(gateway: GatewayProcess) -> Key:
    return gateway.new_key()


@pytest.fixture
def subject(gateway: GatewayProcess, key: Key, engine: FakeEngine) -> Iterator[Subject]:
    made = Subject(gateway, key, engine, MODEL, MAX_MODEL_LEN, OUTPUT_CAP)
    yield made
    made.close()
