"""What never reaches an engine: each bad request has its own stable error, in OpenAI's shape."""

import gzip
import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import openai
import pytest

from gateway import keys
from tests.contract.developer import HELLO
from tests.contract.subject import MAX_BODY_BYTES, Subject
from tests.contract.wire import RawReply, connect, exchange, read_reply, request_bytes

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
WELL_FORMED_BUT_UNKNOWN = keys.generate()


def error_of(reply: RawReply) -> dict[str, Any]:
    """The error object; every refusal has all four fields and a request id."""
    error = json.loads(reply.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert reply.headers["x-request-id"]
    assert reply.headers["content-type"] == "application/json"
    assert isinstance(error, dict)
    return error


def post(subject: Subject, body: bytes, headers: dict[str, str] | None = None, path: str = CHAT) -> RawReply:
    with subject.engine_sees_nothing():
        return exchange(subject.gateway.port, "POST", path, subject.bearer() | JSON | (headers or {}), body)


UNLISTED = [
    "/", "//v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions/",
    "/V1/chat/completions", "/v1/chat%2fcompletions", "/v1%2Fchat/completions",
    "/v1/chat/completion%73", "/v1/./chat/completions", "/v1/x/../chat/completions",
    "/v1/%2e%2e/v1/chat/completions", "/v1/chat/completions%00", "/v1/chat/completions;x=1", "/v1",
    "/v1/", "/admin/keys", "/invocations", "/v1/tokenize", "/detokenize", "/metrics", "/health", "/ping",
    "/version", "/load", "/docs", "/openapi.json", "/inference/v1/generate", "/scale_elastic_ep",
    "/v1/responses/", "/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/v1/chat/completions/render",
    "/v1/completions/render", "/v1/chat/completions/batch", "/v1/rerank", "/tokenizer_info", "/v1/systemone",
    "/v1/load_lora_adapter", "/pooling", "/classify", "/score", "/rerank", "/v1/score", "/v2/rerank",
    "/sleep", "/collective_rpc", "/server_info",
]  # fmt: skip
NOT_JSON = [
    b"", b"{", b"hello", b"{'model': 'x'}", b'{"model": "\xff\xfe"}', b'{"a": 1} {"b": 2}',
    b'{"model": "a", "model": "b"}', b'{"temperature": NaN}', b'{"temperature": Infinity}',
    b'{"temperature": 1e999}', b'{"x": ' + b"[" * 9000 + b"]" * 9000 + b"}",
]  # fmt: skip


class TestPaths:
    @pytest.mark.parametrize("target", UNLISTED)
    @pytest.mark.parametrize("method", ["GET", "POST"])
    def test_a_path_that_is_not_on_the_list_does_not_exist(
        self, subject: Subject, target: str, method: str
    ) -> None:
        body = json.dumps({"model": subject.model, "messages": HELLO}).encode() if method == "POST" else b""
        with subject.engine_sees_nothing():
            reply = exchange(subject.gateway.port, method, target, subject.bearer() | JSON, body)
        assert (reply.status, error_of(reply)["code"]) == (404, "path_not_found")

    def test_what_is_not_http_is_refused(self, subject: Subject) -> None:
        with subject.engine_sees_nothing():
            reply = exchange(subject.gateway.port, "POST", "\\v1\\chat\\completions", subject.bearer(), b"{}")
        assert reply.status == 400

    def test_the_sdk_raises_not_found_for_such_a_path(self, subject: Subject) -> None:
        with pytest.raises(openai.NotFoundError) as raised:
            subject.sdk().post("/realtime", cast_to=object, body={})
        assert raised.value.code == "path_not_found"

    @pytest.mark.parametrize(
        ("method", "target", "allowed"),
        [
            ("GET", "/v1/chat/completions", "POST"), ("PUT", "/v1/chat/completions", "POST"),
            ("DELETE", "/v1/completions", "POST"), ("OPTIONS", "/v1/completions", "POST"),
            ("HEAD", "/v1/embeddings", "POST"), ("POST", "/v1/models", "GET"),
            ("PATCH", "/v1/models/x", "GET"), ("POST", "/livez", "GET"), ("DELETE", "/readyz", "GET"),
        ],
    )  # fmt: skip
    def test_a_wrong_method_is_405_and_names_the_right_one(
        self, subject: Subject, method: str, target: str, allowed: str
    ) -> None:
        with subject.engine_sees_nothing():
            headers = subject.bearer() | {"connection": "close"}
            with connect(subject.gateway.port) as connection:
                connection.sendall(request_bytes(method, target, headers))
                head = connection.recv(2**16).decode("latin-1").lower()
        assert head.startswith("http/1.1 405 ")
        assert f"\r\nallow: {allowed.lower()}\r\n" in head

    @pytest.mark.parametrize("host", ["a?", "a#", "a/x", "localhost", "metrics.internal:9100"])
    def test_a_crafted_host_opens_nothing(self, subject: Subject, host: str) -> None:
        with subject.engine_sees_nothing():
            reply = exchange(subject.gateway.port, "POST", CHAT, JSON | {"host": host}, b"{}")
            hidden = exchange(subject.gateway.port, "GET", "/metrics", {"host": host})
        assert (reply.status, error_of(reply)["code"]) == (401, "missing_api_key")
        assert hidden.status == 404


class TestKeys:
    @pytest.mark.parametrize(
        ("header", "code"),
        [
            (None, "missing_api_key"), ("", "missing_api_key"), ("Basic dXNlcjpwYXNz", "missing_api_key"),
            ("Bearer ", "missing_api_key"), ("Bearer nonsense", "invalid_api_key"),
            ("Bearer sk-proj-1234567890", "invalid_api_key"),
            ("Bearer sk-gh-aaaaaaaaaa-" + "A" * 49, "mistyped_api_key"),
            (f"Bearer {WELL_FORMED_BUT_UNKNOWN}", "invalid_api_key"),
        ],
        ids=["none", "empty", "basic", "no key", "nonsense", "another's", "mistyped", "unknown"],
    )  # fmt: skip
    def test_without_a_valid_key_there_is_no_answer(
        self, subject: Subject, header: str | None, code: str
    ) -> None:
        headers = JSON | ({} if header is None else {"authorization": header})
        with subject.engine_sees_nothing():
            reply = exchange(subject.gateway.port, "POST", CHAT, headers, b"{}")
        assert (reply.status, error_of(reply)["code"]) == (401, code)
        assert error_of(reply)["type"] == "authentication_error"

    def test_a_key_with_one_wrong_character_is_told_from_a_wrong_key(self, subject: Subject) -> None:
        text = subject.key.text
        typo = text[:-10] + ("A" if text[-10] != "A" else "B") + text[-9:]
        with subject.engine_sees_nothing(), pytest.raises(openai.AuthenticationError) as raised:
            subject.sdk(typo).models.list()
        assert raised.value.code == "mistyped_api_key"

    def test_the_gateways_own_engine_key_is_no_key(self, subject: Subject) -> None:
        engine_key = (subject.gateway.secrets_dir / "engine_api_key").read_text()
        with subject.engine_sees_nothing(), pytest.raises(openai.AuthenticationError):
            subject.sdk(engine_key).chat.completions.create(model=subject.model, messages=HELLO)

    def test_a_revoked_key_stops_working(self, subject: Subject) -> None:
        key = subject.gateway.new_key("to-be-revoked")
        subject.sdk(key.text).models.list()
        subject.gateway.revoke(key)
        with subject.engine_sees_nothing(), pytest.raises(openai.AuthenticationError) as raised:
            subject.sdk(key.text).chat.completions.create(model=subject.model, messages=HELLO)
        assert raised.value.code == "revoked_api_key"

    def test_an_expired_key_says_so(self, subject: Subject) -> None:
        expires = datetime.now(UTC) + timedelta(seconds=1)
        key = subject.gateway.new_key("expiring", expires_at=expires.isoformat())
        subject.sdk(key.text).models.list()
        time.sleep(1.1)
        with subject.engine_sees_nothing(), pytest.raises(openai.AuthenticationError) as raised:
            subject.sdk(key.text).chat.completions.create(model=subject.model, messages=HELLO)
        assert raised.value.code == "expired_api_key"


class TestBodies:
    @pytest.mark.parametrize(
        ("body", "code"),
        [
            *((body, "invalid_json") for body in NOT_JSON),
            *((body, "body_not_object") for body in (b"[]", b"null", b'"text"', b"7")),
            (b"{}", "missing_model"), (b'{"model": null}', "missing_model"),
            (b'{"model": 7}', "invalid_parameter"),
            (b'{"model": ""}', "model_not_found"), (b'{"model": "nope"}', "model_not_found"),
        ],
    )  # fmt: skip
    def test_a_body_that_is_not_a_request_is_refused(self, subject: Subject, body: bytes, code: str) -> None:
        reply = post(subject, body)
        assert reply.status == (404 if code == "model_not_found" else 400)
        assert error_of(reply)["code"] == code

    @pytest.mark.parametrize("chunked", [False, True])
    @pytest.mark.parametrize(("extra", "status"), [(0, 404), (1, 413)])
    def test_the_cap_is_on_the_byte(
        self, subject: Subject, *, chunked: bool, extra: int, status: int
    ) -> None:
        start, end = b'{"model": "nope", "x": "', b'"}'
        body = start + b"x" * (MAX_BODY_BYTES + extra - len(start) - len(end)) + end
        headers = {"transfer-encoding": "chunked"} if chunked else {}
        pieces = [body[at : at + 7000] for at in range(0, len(body), 7000)]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        reply = post(subject, framed if chunked else body, headers)
        assert reply.status == status
        assert error_of(reply)["code"] == ("body_too_large" if extra else "model_not_found")

    def test_a_body_that_only_claims_to_be_too_large_is_not_waited_for(self, subject: Subject) -> None:
        headers = subject.bearer() | JSON | {"content-length": str(MAX_BODY_BYTES + 1)}
        with subject.engine_sees_nothing(), connect(subject.gateway.port) as connection:
            connection.sendall(request_bytes("POST", CHAT, headers))
            reply = read_reply(connection)
        assert (reply.status, error_of(reply)["code"]) == (413, "body_too_large")

    def test_a_connection_is_of_use_again_after_a_refusal(self, subject: Subject) -> None:
        with subject.engine_sees_nothing(), connect(subject.gateway.port) as connection:
            for _ in range(3):
                connection.sendall(request_bytes("POST", CHAT, subject.bearer() | JSON, b"[]"))
                assert read_reply(connection).status == 400

    @pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "GZIP", "identity, gzip"])
    def test_a_compressed_body_is_refused(self, subject: Subject, encoding: str) -> None:
        reply = post(subject, gzip.compress(b"{}"), {"content-encoding": encoding})
        assert (reply.status, error_of(reply)["code"]) == (415, "unsupported_encoding")


class TestOutputLimits:
    @pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
    @pytest.mark.parametrize("value", [-1, 0, True, "100", 10.5, 10.0, [], {}])
    def test_a_limit_that_is_not_a_count_is_refused(
        self, subject: Subject, field: str, value: object
    ) -> None:
        reply = post(subject, json.dumps({"model": subject.model, "messages": HELLO, field: value}).encode())
        error = error_of(reply)
        assert (reply.status, error["code"], error["param"]) == (400, "invalid_max_tokens", field)

    def test_more_than_the_models_context_is_refused(self, subject: Subject) -> None:
        for value in (subject.max_model_len + 1, 2**31, 2**63, 10**30):
            body = {"model": subject.model, "messages": HELLO, "max_tokens": value}
            reply = post(subject, json.dumps(body).encode())
            error = error_of(reply)
            assert (reply.status, error["param"]) == (400, "max_tokens")
            assert error["code"] in {"max_tokens_too_large", "invalid_max_tokens"}

    def test_the_sdk_raises_bad_request(self, subject: Subject) -> None:
        with subject.engine_sees_nothing(), pytest.raises(openai.BadRequestError) as raised:
            subject.sdk().chat.completions.create(model=subject.model, messages=HELLO, max_tokens=-1)
        assert (raised.value.code, raised.value.param) == ("invalid_max_tokens", "max_tokens")

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"stream": "yes"}, "stream"), ({"stream": 1}, "stream"),
            ({"stream_options": {"include_usage": True}}, "stream_options"),
            ({"stream": True, "stream_options": "x"}, "stream_options"),
            ({"n": 0}, "n"), ({"n": "2"}, "n"),
        ],
    )  # fmt: skip
    def test_a_parameter_of_the_wrong_kind_is_named(
        self, subject: Subject, fields: dict[str, object], param: str
    ) -> None:
        reply = post(subject, json.dumps({"model": subject.model, "messages": HELLO} | fields).encode())
        error = error_of(reply)
        assert (reply.status, error["code"], error["param"]) == (400, "invalid_parameter", param)

    def test_more_answers_than_the_plan_allows_are_refused_with_the_reason(self, subject: Subject) -> None:
        reply = post(subject, json.dumps({"model": subject.model, "messages": HELLO, "n": 100000}).encode())
        error = error_of(reply)
        assert (reply.status, error["code"], error["param"]) == (400, "parameter_not_allowed", "n")
