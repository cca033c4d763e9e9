import time
from typing import Any

import httpx2
import pytest

from tests.gateway.caddy.backend import Backend
from tests.gateway.caddy.process import Caddy

SECRETS = {
    "Authorization": "Bearer sk-gh-in-authorization",
    "x-api-key": "sk-gh-in-x-api-key",
    "Cookie": "grafana_session=in-cookie",
    "Proxy-Authorization": "Basic in-proxy-authorization",
    "X-Something-Else": "in-something-else",
}


def lines_about(site: Caddy, path: str) -> list[dict[str, Any]]:
    """The log lines of a request; they are written just after its answer."""
    for _ in range(100):
        if found := [line for line in site.logs() if path in str(line.get("request", {}).get("uri"))]:
            return found
        time.sleep(0.02)
    raise AssertionError(f"no line about {path}")


@pytest.mark.parametrize("path", ["/v1/logged", "/nowhere/logged", "/v1/broken-logged", "/grafana/logged"])
def test_no_credential_reaches_the_log(
    site: Caddy, client: httpx2.Client, gateway: Backend, path: str
) -> None:
    client.post(f"{path}?api_key=sk-gh-in-query&token=in-token", headers=SECRETS, content=b"in-body")
    assert lines_about(site, path)
    text = site.output.read_text()
    for secret in (*SECRETS.values(), "sk-gh-in-query", "in-token", "in-body"):
        assert secret not in text


def test_a_request_is_one_json_line_with_its_id(site: Caddy, client: httpx2.Client, gateway: Backend) -> None:
    client.get("/v1/one-line")
    (line,) = lines_about(site, "/v1/one-line")
    assert line["logger"].startswith("http.log.access")
    assert line["request"]["method"] == "GET"
    assert line["request"]["client_ip"] == "127.0.0.1"
    assert line["status"] == 200
    assert line["duration"] > 0
    assert line["request_id"] == "id-of-the-gateway"


@pytest.mark.parametrize("path", ["/nowhere/with-id", "/v1/broken-with-id"])
def test_a_refusal_of_caddys_own_is_logged_with_the_id_that_it_gave(
    site: Caddy, client: httpx2.Client, gateway: Backend, path: str
) -> None:
    given = client.get(path).headers["x-request-id"]
    access = [line for line in lines_about(site, path) if line["logger"].startswith("http.log.access")]
    assert [line["request_id"] for line in access] == [given]
