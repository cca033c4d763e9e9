"""The admin API, on the container's own loopback: keys, what they use, and why they were refused."""

from collections.abc import Callable, Collection

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse
from structlog.typing import FilteringBoundLogger

from gateway import admin_docs
from gateway.admin_auth import TokenFirst
from gateway.admin_errors import add_handlers
from gateway.admin_keys import KeyRoutes
from gateway.admin_reports import ReportRoutes
from gateway.identity import KeyDirectory
from gateway.ledger import Ledger
from gateway.limits import Limiter
from gateway.plans import PlansFile
from gateway.refusals import RefusalLog
from gateway.store import Store


def create_admin_app(
    directory: KeyDirectory,
    *,
    store: Store,
    limiter: Limiter,
    ledger: Ledger,
    plans: PlansFile,
    refusals: RefusalLog,
    models: Collection[str],
    token: str,
    clock: Callable[[], float],
    log: FilteringBoundLogger,
) -> FastAPI:
    """The admin application. `models`: the names that clients can use; `clock`: seconds since the epoch."""
    # FastAPI's own pages load scripts from elsewhere, with which this one shares no secrets.
    app = FastAPI(title="Gatehouse admin", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TokenFirst, token=token)
    add_handlers(app)
    app.include_router(KeyRoutes(directory, store, plans, models, clock, log).router())
    app.include_router(ReportRoutes(directory, store, limiter, ledger, plans, refusals, clock, log).router())

    # The schema takes a tenth of a second to make: in a thread, so that no request waits.
    @app.get("/admin/openapi.json", include_in_schema=False)
    def openapi() -> JSONResponse:
        return JSONResponse(app.openapi())

    @app.get("/admin/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(admin_docs.page(app.openapi()), headers=admin_docs.HEADERS)

    return app
