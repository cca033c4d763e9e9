"""The internal listener: metrics and health, for Prometheus and the container's own check."""

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.health import ALIVE, Health
from gateway.metrics import Metrics


def create_internal_app(metrics: Metrics, health: Health) -> Starlette:
    """The ASGI application of the internal port."""

    async def show_metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), media_type=content_type)

    async def live(_: Request) -> Response:
        return Response(ALIVE, media_type="application/json")

    async def ready(_: Request) -> Response:
        readiness = health.readiness()
        return Response(readiness.body, readiness.status, media_type="application/json")

    return Starlette(routes=[Route("/metrics", show_metrics), Route("/livez", live), Route("/readyz", ready)])
