"""The internal listener: metrics and health, and nothing else."""

import orjson
import pytest

from tests.fakes.asgi import call
from tests.fakes.inprocess import gateway


async def test_metrics_are_told_in_the_text_format() -> None:
    async with gateway() as running:
        client = await call(running.apps.internal, "GET", "/metrics")
        assert client.status == 200
        assert client.headers["content-type"].startswith("text/plain")
        assert b"gateway_build_info{" in client.body


async def test_metrics_are_told_as_openmetrics_to_who_asks() -> None:
    async with gateway() as running:
        client = await call(
            running.apps.internal,
            "GET",
            "/metrics",
            [("accept", "application/openmetrics-text; version=1.0.0")],
        )
        assert client.headers["content-type"].startswith("application/openmetrics-text")
        assert client.body.endswith(b"# EOF\n")


async def test_health_is_told_without_a_key() -> None:
    async with gateway() as running:
        live = await call(running.apps.internal, "GET", "/livez")
        ready = await call(running.apps.internal, "GET", "/readyz")
        assert (live.status, orjson.loads(live.body)) == (200, {"status": "alive"})
        assert (ready.status, orjson.loads(ready.body)) == (200, {"status": "ready"})


@pytest.mark.parametrize("path", ["/v1/models", "/admin/keys", "/"])
async def test_the_other_listeners_routes_are_not_there(path: str) -> None:
    async with gateway() as running:
        assert (await call(running.apps.internal, "GET", path)).status == 404
