"""The application: the table of all endpoints, the dashboard's files, and the guard before them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from gossamer.service.answers import Answers
from gossamer.service.asked import AskEvents, Nothing
from gossamer.service.desk import ServiceState
from gossamer.service.fleetwork import FleetWork
from gossamer.service.guards import AccessGuard
from gossamer.service.metrics import CONTENT_TYPE, exposition
from gossamer.service.openapi import document
from gossamer.service.pages import PagesView
from gossamer.service.routing import ApiRequest, Endpoint, Part, Refused, json, problem, routes
from gossamer.service.shapes import About, Login, Session
from gossamer.service.sites import SitesView
from gossamer.service.tasks import Tasks
from gossamer.service.tokens import COOKIE, SESSION_SECONDS
from gossamer.settings import VERSION

STATIC = Path(__file__).parent / "static"


class Front:
    """Handlers that are about the service itself."""

    def __init__(self, desk: ServiceState) -> None:
        self._desk = desk
        self.table: Sequence[Endpoint] = ()

    def endpoints(self) -> list[Endpoint]:
        """The lines of the table."""

        def line(path: str, handler: Any, summary: str, **more: Any) -> Endpoint:
            fixed: dict[str, Any] = {"method": "GET", "tag": "service"}
            return Endpoint(path=path, handler=handler, summary=summary, **(fixed | more))

        text = "text/plain"
        return [
            line("/healthz", self.health, "Whether the service runs.", media=text, role=None),
            line("/readyz", self.ready, "Whether it can reach its jobs.", media=text, role=None, refusals=(503,)),
            line("/metrics", self.metrics, "Metrics for Prometheus.", media=text),
            line("/openapi.json", self.openapi, "This document.", answer=dict[str, Any], role=None),
            line("/api", self.about, "What this service is, and what this client may do.", answer=About),
            line("/api/session", self.log_in, "Exchange a token for a cookie.", method="POST", body=Login,
                 answer=Session, role=None, refusals=(401,)),
            line("/api/session", self.log_out, "Throw the cookie away.", method="DELETE", status=204, role=None),
            line("/api/events", self.events, "Live events: `sample` with every look at a job, `job` when its state "
                 "changes, `missed` with a number when this client was too slow.", query=AskEvents,
                 media="text/event-stream", refusals=(503,)),
        ]  # fmt: skip

    async def health(self, _: ApiRequest[Nothing, None]) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(self, _: ApiRequest[Nothing, None]) -> Response:
        watch = self._desk.watch
        if not watch.is_ready:
            # The reason may name a server: it is for those with a token, and for the log.
            raise Refused(503, "the jobs cannot be reached", headers={"retry-after": "5"})
        return PlainTextResponse("ok\n")

    async def metrics(self, _: ApiRequest[Nothing, None]) -> Response:
        desk = self._desk
        return Response(exposition(desk.watch, desk.hub, now=desk.clock.epoch()), media_type=CONTENT_TYPE)

    async def openapi(self, _: ApiRequest[Nothing, None]) -> Response:
        return json(document(self.table, secured=not self._desk.doorkeeper.is_open))

    async def about(self, asked: ApiRequest[Nothing, None]) -> About:
        desk = self._desk
        return About(
            version=VERSION,
            only=desk.only,
            place="fleet" if desk.directory.place == "fleet" else "embedded",
            role=asked.role,
            spiders=sorted(desk.spiders),
            least_delay=desk.base.delay,
            may_start=desk.directory.may_start and asked.role == "write" and desk.only != "pages",
        )

    async def log_in(self, asked: ApiRequest[Nothing, Login]) -> Response:
        keeper = self._desk.doorkeeper
        role = "write" if keeper.is_open else keeper.role_of(asked.body.token)
        if role is None:
            raise Refused(401, "this token is not known", headers={"www-authenticate": "Bearer"})
        answer = json(Session(role=role))
        answer.set_cookie(
            COOKIE,
            keeper.session(role),
            max_age=int(SESSION_SECONDS),
            httponly=True,
            samesite="strict",
            secure=asked.headers.get("x-forwarded-proto") == "https",
        )
        return answer

    async def log_out(self, _: ApiRequest[Nothing, None]) -> Response:
        answer = Response(status_code=204)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    async def events(self, asked: ApiRequest[AskEvents, None]) -> Response:
        self._desk.hub.check()
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._desk.hub.listen(asked.query.job), 200, headers, "text/event-stream")


def table(desk: ServiceState, only: Part = "") -> list[Endpoint]:
    """All endpoints of the part that is served; without one, of both."""
    front = Front(desk)
    parts: tuple[Any, ...] = (front, Tasks(desk), Answers(desk), FleetWork(desk), SitesView(desk), PagesView(desk))
    found = [endpoint for part in parts for endpoint in part.endpoints()]
    front.table = [one for one in found if not only or one.part in ("", only)]
    return list(front.table)


def application(desk: ServiceState, *, hosts: Sequence[str] = (), rate: float = 100.0) -> ASGIApp:
    """The whole of it, as an ASGI application; while it lives it watches the jobs."""
    files = Mount("/", StaticFiles(directory=STATIC, html=True))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(desk.watch.run())
        try:
            yield
        finally:
            desk.hub.close()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await desk.watch.aclose()
            await desk.directory.aclose()

    app = Starlette(
        routes=[*routes(table(desk, desk.only)), files],
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_problem},
    )
    app.router.redirect_slashes = False
    return AccessGuard(app, desk.doorkeeper, hosts=hosts, rate=rate, clock=desk.clock)


async def _http_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, error.detail, headers=error.headers)
