"""The gateway as a process: what it needs to start, what it writes, how it ends."""

import json
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import openai
import pytest

from gateway import keys
from standin.render import DONE
from tests.contract.developer import HELLO
from tests.contract.subject import MAX_BODY_BYTES, Subject
from tests.fakes import scenarios
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway_process import ROOT, EnginePlan, GatewayProcess
from tests.gateway.conftest import ENGINE_KEY, MAX_MODEL_LEN, MODEL, StartGateway

CANARY = "zebra-canary-0815"
# The design's names; a field that does not apply is null, not absent.
LOG_FIELDS = {
    "ts", "level", "event", "request_id", "tenant", "key_id", "model", "route", "status", "stream",
    "prompt_tokens", "completion_tokens", "usage_estimated", "ttft_ms", "duration_ms", "upstream",
    "finish_reason", "bytes_in", "bytes_out", "client_ip", "refused_by",
}  # fmt: skip


@pytest.fixture
def unstarted(tmp_path: Path, engine: FakeEngine) -> GatewayProcess:
    """A gateway that would start; each test spoils one thing."""
    return GatewayProcess(tmp_path, EnginePlan(engine.url, ENGINE_KEY, [MODEL], MAX_MODEL_LEN))


class TestStart:
    # One of each kind, for each is a process: the unit tests of the settings go through all values.
    def test_a_placeholder_secret_stops_it(self, unstarted: GatewayProcess) -> None:
        unstarted.write_secret("admin_token", "change-me-change-me-change-me-change-me")
        refused(unstarted, "admin_token", "make setup")

    def test_a_data_directory_that_is_not_there_stops_it(self, unstarted: GatewayProcess) -> None:
        unstarted.environment |= {"GATEWAY_DATA_DIR": "/nowhere/data"}
        refused(unstarted, "/nowhere/data")

    def test_a_port_that_is_taken_stops_it(self, unstarted: GatewayProcess, engine: FakeEngine) -> None:
        unstarted.environment |= {"GATEWAY_PORT": str(engine.port)}
        refused(unstarted, str(engine.port))


def refused(gateway: GatewayProcess, *words: str) -> None:
    """It must not start, and say why in one line that has these words."""
    code, out, errors = gateway.refuse_to_start()
    assert (code, out) == (2, "")
    assert errors.startswith("gateway: ")
    assert errors.count("\n") == 1
    assert all(word in errors for word in words)


class TestEnd:
    def test_sigterm_lets_a_stream_finish_and_refuses_new_connections(
        self, start_gateway: StartGateway, engine: FakeEngine, subject: Subject
    ) -> None:
        gateway = start_gateway()
        own = subject.behind(gateway)
        engine.scenario = scenarios.normal(delay=0.05)
        body = {"model": own.model, "messages": HELLO, "stream": True, "max_tokens": 30}
        url = f"{gateway.url}/v1/chat/completions"
        with httpx2.stream("POST", url, json=body, headers=own.bearer(), timeout=5) as reply:
            chunks = reply.iter_raw()
            received = next(chunks)
            gateway.process.terminate()
            time.sleep(0.3)
            with pytest.raises(openai.APIConnectionError):
                own.sdk().models.list()
            received += b"".join(chunks)
        assert received.endswith(DONE)
        assert gateway.process.wait(5) == 0
        engine.await_idle()
        assert gateway.access_lines()[-1]["completion_tokens"] == 30

    def test_the_drain_has_an_end(
        self, start_gateway: StartGateway, engine: FakeEngine, subject: Subject
    ) -> None:
        gateway = start_gateway(GATEWAY_DRAIN_SECONDS="1")
        own = subject.behind(gateway)
        engine.scenario = scenarios.stalls_after(2)
        body = {"model": own.model, "messages": HELLO, "stream": True}
        url = f"{gateway.url}/v1/chat/completions"
        with httpx2.stream("POST", url, json=body, headers=own.bearer(), timeout=10) as reply:
            chunks = reply.iter_raw()
            next(chunks)
            gateway.process.terminate()
            assert gateway.process.wait(5) == 0
        assert engine.only_request().aborted.wait(1)

    def test_it_ends_at_once_when_it_is_idle_also_with_connections_open(
        self, start_gateway: StartGateway
    ) -> None:
        gateway = start_gateway()
        with httpx2.Client() as client:
            client.get(f"{gateway.url}/livez")
            started = time.monotonic()
            assert gateway.stop() == 0
        assert time.monotonic() - started < 3

    def test_keys_outlive_the_process(self, start_gateway: StartGateway) -> None:
        gateway = start_gateway()
        kept, revoked = gateway.new_key("kept"), gateway.new_key("revoked")
        gateway.revoke(revoked)
        assert gateway.stop() == 0
        gateway.start()
        try:
            sdk = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=kept.text, max_retries=0)
            assert sdk.models.list().data
            with pytest.raises(openai.AuthenticationError) as raised:
                sdk.with_options(api_key=revoked.text).models.list()
            assert raised.value.code == "revoked_api_key"
        finally:
            gateway.stop()


class TestOutput:
    def test_a_request_has_one_line_with_all_fields(self, subject: Subject, engine: FakeEngine) -> None:
        raw = subject.sdk().chat.completions.with_raw_response.create(
            model=subject.model, messages=HELLO, max_tokens=5, stream=True
        )
        list(raw.parse())
        line = subject.gateway.access_line(raw.headers["x-request-id"])
        assert set(line) >= LOG_FIELDS
        expected = {
            "level": "info", "tenant": subject.key.tenant, "key_id": subject.key.id, "model": MODEL,
            "route": "/v1/chat/completions", "status": 200, "stream": True, "prompt_tokens": 9,
            "completion_tokens": 5, "upstream": "vllm", "finish_reason": "length", "client_ip": "127.0.0.1",
            "refused_by": None, "bytes_out": len(b"".join(passed(engine))),
        }  # fmt: skip
        assert {name: line[name] for name in expected} == expected
        assert 0 < line["ttft_ms"] <= line["duration_ms"]
        assert line["bytes_in"] > 0

    def test_a_refusal_has_its_line_too(self, subject: Subject) -> None:
        reply = httpx2.get(f"{subject.gateway.url}/nowhere")
        line = subject.gateway.access_line(reply.headers["x-request-id"])
        assert (line["status"], line["refused_by"], line["route"]) == (404, "path_not_found", "other")
        assert line["key_id"] is None

    def test_no_key_prompt_or_answer_is_in_any_output(self, subject: Subject, engine: FakeEngine) -> None:
        answer = {"choices": [{"message": {"content": CANARY}}]}
        key = subject.gateway.new_key("canary")
        wrong = "sk-gh-canarycana-" + CANARY
        url = f"{subject.gateway.url}/v1/chat/completions"
        bodies: list[dict[str, object]] = [
            {"model": MODEL, "messages": [{"role": "user", "content": CANARY}]},
            {"model": CANARY, "messages": []},
            {"model": MODEL, "max_tokens": CANARY, CANARY: 1},
            {"model": MODEL, "messages": [{"role": "user", "content": CANARY * 2000}]},
        ]
        scenes = [
            scenarios.replies(200, answer),
            scenarios.replies(400, {"error": {"message": CANARY, "code": 400}}),
            scenarios.replies(500, CANARY.encode()),
            scenarios.sends_raw(CANARY.encode()),
            scenarios.streams(f"data: {CANARY}\n\n".encode()),
        ]
        for engine.scenario in scenes:
            for body in bodies:
                for text in (key.text, wrong):
                    headers = {"authorization": f"Bearer {text}", "x-request-id": f"{CANARY} x"}
                    httpx2.post(f"{url}?key={CANARY}", json=body, headers=headers)
        httpx2.post(url, content=b'{"' + CANARY.encode(), headers={"authorization": f"Bearer {key.text}"})
        output = subject.gateway.output()
        secrets = [path.read_bytes() for path in subject.gateway.secrets_dir.iterdir()]
        for hidden in (CANARY.encode(), key.text.encode(), subject.key.text.encode(), *secrets):
            assert hidden not in output
        assert key.id.encode() in output
        assert len(str(bodies[-1])) > MAX_BODY_BYTES

    def test_a_run_writes_json_lines_and_nothing_else(
        self, start_gateway: StartGateway, engine: FakeEngine, subject: Subject
    ) -> None:
        gateway = start_gateway()
        own = subject.behind(gateway)
        own.sdk().chat.completions.create(model=MODEL, messages=HELLO)
        assert gateway.stop() == 0
        lines = gateway.log_lines()
        assert [line["event"] for line in lines] == ["started", "key_created", "request", "drained"]
        assert all({"ts", "level"} <= set(line) for line in lines)
        assert len(b"\n".join([*gateway.output().splitlines(), b""])) == len(gateway.output())
        assert not gateway.errors()


def passed(engine: FakeEngine) -> list[bytes]:
    events = bytes(engine.only_request().sent).split(b"\n\n")[:-1]
    return [event + b"\n\n" for event in events if b'"choices":[]' not in event]


class TestMetrics:
    def test_they_are_on_the_internal_port_only(self, gateway: GatewayProcess) -> None:
        assert httpx2.get(f"{gateway.internal}/metrics").status_code == 200
        assert httpx2.get(f"{gateway.url}/metrics").status_code == 404
        for path in ("/v1/models", "/admin/keys", "/docs"):
            assert httpx2.get(gateway.internal + path).status_code == 404

    def test_a_request_moves_them(self, subject: Subject, engine: FakeEngine) -> None:
        labels = {
            "tenant": subject.key.tenant, "key_id": subject.key.id, "model": MODEL, "status": "2xx",
            "route": "/v1/chat/completions", "reason": "ok",
        }  # fmt: skip
        metric = subject.gateway.metric

        def values() -> list[float]:
            return [
                metric("gateway_requests_total", **labels),
                metric("gateway_request_duration_seconds_count", model=MODEL),
                metric("gateway_time_to_first_token_seconds_count", model=MODEL),
                metric("gateway_prompt_tokens_total", tenant=subject.key.tenant, model=MODEL),
                metric("gateway_completion_tokens_total", tenant=subject.key.tenant, model=MODEL),
            ]

        before = values()
        list(subject.sdk().chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5, stream=True))
        # The SDK stops at `[DONE]`; the gateway counts when the engine's reply has ended, a moment later.
        deadline = time.monotonic() + 2
        while (moved := [new - old for new, old in zip(values(), before, strict=True)]) != [1, 1, 1, 9, 5]:
            assert time.monotonic() < deadline, moved

    def test_refusals_are_counted_by_reason(self, subject: Subject) -> None:
        def count() -> float:
            return subject.gateway.metric("gateway_requests_total", reason="missing_api_key", status="4xx")

        before = count()
        httpx2.get(f"{subject.gateway.url}/v1/models")
        assert count() == before + 1

    def test_labels_are_bounded_whatever_a_client_sends(self, subject: Subject) -> None:
        def samples() -> int:
            return len(httpx2.get(f"{subject.gateway.internal}/metrics").text.splitlines())

        def strange(at: int) -> None:
            body = {"model": f"model-{at}", "messages": HELLO}
            httpx2.post(f"{subject.gateway.url}/v1/chat/completions", json=body, headers=subject.bearer())
            httpx2.get(f"{subject.gateway.url}/path-{at}")
            httpx2.request(f"METHOD{at}", f"{subject.gateway.url}/v1/models")
            httpx2.get(f"{subject.gateway.url}/v1/models/name-{at}", headers=subject.bearer())

        strange(0)
        before = samples()
        for at in range(1, 20):
            strange(at)
        assert samples() == before


class TestAdmin:
    @pytest.mark.parametrize("token", [None, "Bearer wrong", "Bearer", "Basic x"])
    def test_it_wants_its_token(self, gateway: GatewayProcess, token: str | None) -> None:
        headers = {"authorization": token} if token else {}
        reply = httpx2.get(f"{gateway.admin}/admin/keys", headers=headers)
        assert (reply.status_code, reply.json()["error"]["type"]) == (401, "authentication_error")

    def test_a_users_key_is_no_admin_token(self, subject: Subject) -> None:
        reply = httpx2.get(f"{subject.gateway.admin}/admin/keys", headers=subject.bearer())
        assert reply.status_code == 401

    def test_the_list_shows_no_secret(self, gateway: GatewayProcess) -> None:
        key = gateway.new_key("listed", tenant="team-b", requests_per_minute=7)
        reply = gateway.call_admin("GET", "/admin/keys")
        found = next(one for one in reply.json()["keys"] if one["id"] == key.id)
        assert (found["name"], found["tenant"], found["requests_per_minute"]) == ("listed", "team-b", 7)
        assert found["revoked_at"] is None
        assert key.text.rpartition("-")[2] not in reply.text

    def test_an_unknown_key_cannot_be_revoked(self, gateway: GatewayProcess) -> None:
        reply = gateway.call_admin("POST", "/admin/keys/aaaaaaaaaa/revoke")
        assert reply.status_code == 404
        assert reply.json()["error"]["message"]

    @pytest.mark.parametrize(
        "body", [{}, {"name": ""}, {"name": "a", "requests_per_minute": 0}, {"name": "a", "surprise": 1}]
    )
    def test_a_key_that_makes_no_sense_is_not_made(
        self, gateway: GatewayProcess, body: dict[str, object]
    ) -> None:
        reply = gateway.call_admin("POST", "/admin/keys", body)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"]

    def test_the_command_beside_the_process_speaks_to_it(self, gateway: GatewayProcess) -> None:
        ports = {"GATEWAY_ADMIN_PORT": gateway.admin.rpartition(":")[2]}

        def call(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "gateway.call", *arguments]
            env = gateway.environment | ports | environment
            return subprocess.run(
                command, cwd=ROOT, env=env, input=stdin, capture_output=True, text=True, check=False
            )

        made = call("POST", "/admin/keys", stdin='{"name": "by-command"}')
        assert made.returncode == 0
        answer = json.loads(made.stdout)
        assert answer["status"] == 201
        assert answer["body"]["key"].startswith("sk-gh-")
        listed = json.loads(call("GET", "/admin/keys").stdout)
        assert answer["body"]["id"] in {key["id"] for key in listed["body"]["keys"]}
        assert call("GET", "/admin/keys", GATEWAY_ADMIN_PORT="9").returncode == 3


class TestStore:
    def test_a_store_that_is_gone_degrades_and_serves_known_keys(
        self, start_gateway: StartGateway, engine: FakeEngine, subject: Subject
    ) -> None:
        gateway = start_gateway()
        own = subject.behind(gateway)
        before, unknown = gateway.new_key(), keys.generate()
        with sqlite3.connect(gateway.home / "data" / "gateway.db") as store:
            store.execute("ALTER TABLE api_keys RENAME TO gone")
        readiness(gateway, "degraded")
        assert gateway.metric("gateway_store_up") == 0
        assert httpx2.get(f"{gateway.url}/readyz").status_code == 200
        assert own.sdk().chat.completions.create(model=MODEL, messages=HELLO).choices
        with pytest.raises(openai.InternalServerError) as raised:
            own.sdk(unknown).models.list()
        assert (raised.value.status_code, raised.value.code) == (503, "store_unavailable")
        refused = gateway.call_admin("POST", f"/admin/keys/{before.id}/revoke")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        with sqlite3.connect(gateway.home / "data" / "gateway.db") as store:
            store.execute("ALTER TABLE gone RENAME TO api_keys")
        readiness(gateway, "ready")
        with pytest.raises(openai.AuthenticationError):
            own.sdk(unknown).models.list()


def readiness(gateway: GatewayProcess, status: str) -> None:
    """Wait until /readyz says so."""
    deadline = time.monotonic() + 5
    while httpx2.get(f"{gateway.url}/readyz").json()["status"] != status:
        assert time.monotonic() < deadline, f"never {status}"
        time.sleep(0.1)


def test_many_clients_at_once_all_get_their_own_answer(subject: Subject, engine: FakeEngine) -> None:
    answers: list[str] = []

    def ask(at: int) -> None:
        sdk = subject.sdk()
        made = sdk.chat.completions.with_raw_response.create(
            model=MODEL, messages=HELLO, max_tokens=4, extra_headers={"x-request-id": f"client-{at}"}
        )
        answers.append(made.headers["x-request-id"])

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(answers) == sorted(f"client-{at}" for at in range(20))
