import socket
import ssl

import anthropic
import httpx2
import openai
import pytest

from gateway.anthropic import error_type
from tests.gateway.caddy.backend import Backend
from tests.gateway.caddy.process import BODY_CAP, Caddy, free_ports, running_caddy, site_environment


def error_of(response: httpx2.Response) -> dict[str, str | None]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert "server" not in response.headers
    return dict(error)


def get(path: str, host: str = "localhost") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()


def test_plain_http_is_sent_to_https_on_the_published_port(site: Caddy) -> None:
    response = httpx2.get(f"http://localhost:{site.http}/v1/models?a=b", follow_redirects=False)
    assert response.status_code == 308
    assert response.headers["location"] == f"{site.url}/v1/models?a=b"


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/chat/completions", "/v1/messages", "/tokenize", "/livez", "/readyz"]
)
def test_the_api_and_its_health_go_to_the_gateway(client: httpx2.Client, gateway: Backend, path: str) -> None:
    response = client.get(path)
    assert response.json() == {"path": path}
    assert response.headers["x-request-id"] == "id-of-the-gateway"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "server" not in response.headers
    assert "via" not in response.headers
    assert [request.path for request in gateway.seen] == [path]


@pytest.mark.parametrize("path", ["/grafana/", "/grafana/d/gatehouse?from=now", "/grafana/api/health"])
def test_grafana_gets_its_sub_path_unchanged(client: httpx2.Client, grafana: Backend, path: str) -> None:
    assert client.get(path).json() == {"path": path}
    assert [request.path for request in grafana.seen] == [path]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/metrics",
        "/admin/keys",
        "/health",
        "/version",
        "/docs",
        "/openapi.json",
        "/tokenize/",
        "/detokenize",
        "/invocations",
        "/v1",
        "/v2/embed",
        "/inference/v1/generate",
        "/config/",
        "/healthz",
        "/prometheus/",
        "/livez/",
        "/grafanax",
        "/grafana/metrics",
        "/grafana/metrics/",
        "/grafana//metrics",
        "/grafana/%6detrics",
        "/grafana/METRICS",
        "/grafana/x/../metrics",
        "/v1/../metrics",
        "/v1/../admin/keys",
        "/livez/../metrics",
        "/%2e/metrics",
    ],
)
def test_nothing_else_is_reachable(site: Caddy, gateway: Backend, grafana: Backend, path: str) -> None:
    answer = site.raw(get(path))
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b'"code": "path_not_found"' in answer
    assert not gateway.seen
    assert not grafana.seen


def test_a_path_that_does_not_exist_is_refused_in_the_sdks_shape(client: httpx2.Client) -> None:
    response = client.get("/metrics")
    assert response.status_code == 404
    assert error_of(response)["code"] == "path_not_found"


def anthropic_error_of(response: httpx2.Response) -> dict[str, str | None]:
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert response.headers["content-type"] == "application/json"
    return dict(body["error"])


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_on_anthropics_paths_a_refusal_has_its_sdks_shape(
    client: httpx2.Client, gateway: Backend, path: str
) -> None:
    response = client.post(path, content=b"x" * (BODY_CAP + 1))
    error = anthropic_error_of(response)
    assert (response.status_code, error["type"]) == (413, error_type(413))
    assert (error["code"], error["param"]) == ("body_too_large", None)
    assert not gateway.seen


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_the_official_sdks_raise_their_classes_for_caddys_own_refusals(
    client: httpx2.Client, path: str
) -> None:
    long = "x" * (BODY_CAP + 1)
    url = str(client.base_url)
    if path == "/v1/messages":
        anthropics = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0, http_client=client)
        with pytest.raises(anthropic.ContentTooLargeError):
            anthropics.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": long}])
        return
    openais = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, http_client=client)
    with pytest.raises(openai.APIStatusError) as raised:
        openais.chat.completions.create(model="m", messages=[{"role": "user", "content": long}])
    assert (raised.value.status_code, raised.value.code) == (413, "body_too_large")


def test_another_host_name_is_misdirected(site: Caddy, gateway: Backend) -> None:
    answer = site.raw(get("/v1/models", host="elsewhere.example"))
    assert answer.startswith(b"HTTP/1.1 421 ")
    assert not gateway.seen


def test_the_metrics_are_on_a_port_of_their_own(site: Caddy, client: httpx2.Client) -> None:
    client.get("/livez")
    metrics = httpx2.get(f"http://127.0.0.1:{site.env['CADDY_METRICS_PORT']}/metrics").text
    assert "caddy_http_requests_total" in metrics
    other = httpx2.get(f"http://127.0.0.1:{site.env['CADDY_METRICS_PORT']}/config/")
    assert other.status_code == 404


@pytest.mark.parametrize("length_known", [True, False])
def test_a_body_one_byte_over_the_cap_is_refused(
    client: httpx2.Client, gateway: Backend, *, length_known: bool
) -> None:
    body = b"x" * (BODY_CAP + 1)
    response = client.post(
        "/v1/completions", content=body if length_known else iter([body[:500], body[500:]])
    )
    assert response.status_code == 413
    assert error_of(response)["code"] == "body_too_large"
    assert str(BODY_CAP) in response.text
    assert not gateway.seen


@pytest.mark.parametrize("length_known", [True, False])
def test_a_body_at_the_cap_passes(client: httpx2.Client, gateway: Backend, *, length_known: bool) -> None:
    body = b"x" * BODY_CAP
    response = client.post(
        "/v1/completions", content=body if length_known else iter([body[:500], body[500:]])
    )
    assert response.status_code == 200
    assert [len(request.body) for request in gateway.seen] == [BODY_CAP]


def test_a_client_cannot_say_how_its_request_came(client: httpx2.Client, gateway: Backend) -> None:
    forged = {
        "Forwarded": "for=1.2.3.4",
        "X-Forwarded-For": "1.2.3.4",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Proto": "http",
        "X-Forwarded-Port": "1",
        "X-Forwarded-User": "root",
        "X-Real-IP": "1.2.3.4",
        "True-Client-IP": "1.2.3.4",
        "X-Client-IP": "1.2.3.4",
        "X-Original-URL": "/metrics",
        "X-Rewrite-URL": "/m",
        "X-HTTP-Method-Override": "DELETE",
        "X-Webauth-User": "admin",
        "X-data-parallel-rank": "1",
        "traceparent": "00-0-0-00",
        "tracestate": "a=b",
        "baggage": "a=b",
        "Proxy": "evil:1",
    }
    client.get("/v1/models", headers=forged)
    (request,) = gateway.seen
    said = {name.lower(): value for name, value in request.headers.items()}
    assert said["x-forwarded-for"] == "127.0.0.1"
    assert said["x-forwarded-proto"] == "https"
    assert said["x-forwarded-host"].startswith("localhost")
    allowed = {"x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"}
    assert not {name.lower() for name in forged} & (set(said) - allowed)
    assert not any("1.2.3.4" in value or "evil" in value for value in said.values())


def test_what_the_gateway_needs_of_the_client_passes(client: httpx2.Client, gateway: Backend) -> None:
    client.get("/v1/models", headers={"Authorization": "Bearer k", "x-api-key": "k", "X-Request-Id": "mine"})
    (request,) = gateway.seen
    assert request.headers["Authorization"] == "Bearer k"
    assert request.headers["x-api-key"] == "k"
    assert request.headers["X-Request-Id"] == "mine"


def test_a_gateway_that_is_down_is_a_503_with_a_time_to_retry(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    (closed,) = free_ports(1)
    env = site_environment(f"127.0.0.1:{closed}", f"127.0.0.1:{closed}")
    data = tmp_path_factory.mktemp("down")
    with running_caddy("Caddyfile", env, data, health_port=int(env["CADDY_METRICS_PORT"])) as caddy:
        with caddy.client() as client:
            response = client.post("/v1/chat/completions", content=b"{}")
            message = client.post("/v1/messages", content=b"{}")
    assert message.status_code == 503
    assert message.headers["retry-after"] == "5"
    assert anthropic_error_of(message)["type"] == error_type(503)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert error_of(response)["code"] == "engine_unavailable"


def test_a_reply_that_breaks_off_is_a_503(client: httpx2.Client, gateway: Backend) -> None:
    response = client.post("/v1/broken", content=b"{}")
    assert response.status_code == 503
    assert error_of(response)["code"] == "engine_unavailable"


def test_http_2_is_spoken_and_http_3_announced(site: Caddy, client: httpx2.Client) -> None:
    context = site.trust
    context.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(("127.0.0.1", site.https)) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            assert connection.selected_alpn_protocol() == "h2"
    context.set_alpn_protocols(["http/1.1"])
    assert 'h3=":' in client.get("/livez").headers["alt-svc"]


def test_old_tls_is_refused(site: Caddy) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AES128-SHA:AES256-SHA")
    with socket.create_connection(("127.0.0.1", site.https)) as plain:
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_hostname="localhost")


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "anything"])
def test_the_gateway_is_never_asked_for_another_protocol(
    site: Caddy, gateway: Backend, protocol: str
) -> None:
    head = get("/v1/models").replace(b"close", f"close, Upgrade\r\nUpgrade: {protocol}".encode())
    assert site.raw(head).startswith(b"HTTP/1.1 200 ")
    (request,) = gateway.seen
    assert "Upgrade" not in request.headers
    assert "upgrade" not in request.headers.get("Connection", "").lower()


@pytest.mark.parametrize("filler", [b"/" + b"a" * 60_000, b"/v1/" + b"a" * 60_000])
def test_a_head_that_would_fill_the_log_is_refused_and_not_logged(
    site: Caddy, gateway: Backend, filler: bytes
) -> None:
    before = len(site.output.read_bytes())
    assert site.raw(get(filler.decode())).startswith(b"HTTP/1.1 431 ")
    assert not gateway.seen
    assert len(site.output.read_bytes()) - before < 10_000
