"""The service's ASGI application: endpoints and their OpenAPI document."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from gossamer.service.jobs import FleetEndpoints, HistoryEndpoints, JobEndpoints
from gossamer.service.metrics import CONTENT_TYPE, exposition
from gossamer.service.pages import PageEndpoints
from gossamer.service.routing import (
    JSON,
    STATUS_DESCRIPTIONS,
    ApiError,
    ApiRequest,
    Endpoint,
    Part,
    json,
    problem_response,
    routes,
)
from gossamer.service.schemas import JOB_NAME, About, EventsQuery, Login, NoParameters, Problem, Session
from gossamer.service.security import COOKIE, SESSION_SECONDS, AccessGuard
from gossamer.service.sites import SiteEndpoints
from gossamer.service.state import ServiceState
from gossamer.settings import VERSION

_REF = "#/components/schemas/{name}"
_PATHS = {"job": {"type": "string", "pattern": JOB_NAME, "maxLength": 100}}
_TAGS = {
    "service": "The service itself: health, metrics, login, and live events.",
    "tasks": "Submit, inspect, and control jobs.",
    "answers": "History, errors, politeness, and why a URL was or was not fetched.",
    "fleet": "Workers, sites, shards, and regions.",
    "pages": "Stored pages, versions, and bodies.",
}


def document(endpoints: Sequence[Endpoint], *, secured: bool = True) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these endpoints."""
    named = [Problem, *_types(endpoints)]
    schemas, components = msgspec.json.schema_components(named, ref_template=_REF)
    found = dict(zip(map(id, named), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(
            endpoint, found, components, secured=secured
        )
    used = _reachable(paths, components)
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Gossamer",
            "version": VERSION,
            "description": "The API of `gossamer serve`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name, "description": words} for name, words in _TAGS.items()],
        "paths": paths,
        "components": {"schemas": {name: components[name] for name in sorted(used)}},
    }
    if secured:
        made["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer"},
            "session": {"type": "apiKey", "in": "cookie", "name": "gossamer"},
        }
    return made


def _types(endpoints: Iterable[Endpoint]) -> list[Any]:
    found = {}
    for endpoint in endpoints:
        for kind in (endpoint.query, endpoint.body, endpoint.answer):
            if kind is not None:
                found[id(kind)] = kind
    return list(found.values())


def _operation(
    endpoint: Endpoint, found: dict[int, Any], components: dict[str, Any], *, secured: bool
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": _identifier(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": [*_path_parameters(endpoint.path), *_query_parameters(endpoint, components)],
        "responses": _responses(endpoint, found),
    }
    if endpoint.body is not None:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": found[id(endpoint.body)]}}}
    if endpoint.role is not None:
        made["x-role"] = endpoint.role
        made |= {"security": [{"token": []}, {"session": []}]} if secured else {}
    return made


def _identifier(endpoint: Endpoint) -> str:
    words = re.findall(r"[a-z]+", endpoint.path.removeprefix("/api/"))
    return "_".join((endpoint.method.lower(), *words))


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)(?::\w+)?\}", path)
    return [{"name": name, "in": "path", "required": True, "schema": _PATHS[name]} for name in names]


def _query_parameters(endpoint: Endpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    schema = components[endpoint.query.__name__]
    made = []
    for name, kind in schema["properties"].items():
        kind = _without_null(kind)
        words = kind.pop("description", "")
        one = {"name": name, "in": "query", "required": name in schema["required"], "schema": kind}
        made.append(one | ({"description": words} if words else {}))
    return made


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without null: a query string has no null, clients omit the parameter instead."""
    options = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if len(options) == 1:
        return dict(options[0])
    kept = {name: value for name, value in schema.items() if not (name == "default" and value is None)}
    return {**kept, "enum": [one for one in kept["enum"] if one is not None]} if "enum" in kept else kept


def _responses(endpoint: Endpoint, found: dict[int, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if endpoint.answer is not None:
        made[str(endpoint.status)] = {
            "description": "What was request for.",
            "content": {JSON: {"schema": found[id(endpoint.answer)]}},
        }
    elif endpoint.status == 204:
        made["204"] = {"description": "Success, without content."}
    else:
        content = {endpoint.media: {"schema": {"type": "string"}}}
        made[str(endpoint.status)] = {"description": "What was request for.", "content": content}
    wrong = {400, 403, 429, *endpoint.refusals}
    wrong |= {401} if endpoint.role is not None else set()
    wrong |= {413, 415} if endpoint.body is not None else set()
    wrong |= {404, 409, 503} if "{job}" in endpoint.path else set()
    for status in sorted(wrong):
        made[str(status)] = {
            "description": STATUS_DESCRIPTIONS[status],
            "content": {JSON: {"schema": found[id(Problem)]}},
        }
    return made


def _reachable(paths: Any, components: dict[str, Any]) -> set[str]:
    """The names of all schemas that are referenced, directly or through other schemas."""
    used: set[str] = set()
    waiting = [paths]
    while waiting:
        text = msgspec.json.encode(waiting.pop()).decode()
        for name in re.findall(r'"#/components/schemas/([^"]+)"', text):
            if name not in used:
                used.add(name)
                waiting.append(components[name])
    return used


STATIC = Path(__file__).parent / "static"


class ServiceEndpoints:
    """Handlers of the endpoints about the service itself."""

    def __init__(self, service: ServiceState) -> None:
        self._service = service
        self.table: Sequence[Endpoint] = ()

    def endpoints(self) -> list[Endpoint]:
        """The endpoints of this group."""

        def line(path: str, handler: Any, summary: str, **more: Any) -> Endpoint:
            fixed: dict[str, Any] = {"method": "GET", "tag": "service"}
            return Endpoint(path=path, handler=handler, summary=summary, **(fixed | more))

        text = "text/plain"
        return [
            line("/healthz", self.health, "Liveness: returns 200 while the process responds.", media=text, role=None),
            line("/readyz", self.ready,
                 "Readiness: returns 200 while the service can list its jobs, and 503 otherwise.", media=text,
                 role=None, refusals=(503,)),
            line("/metrics", self.metrics, "Metrics in the Prometheus text format.", media=text),
            line("/openapi.json", self.openapi, "This OpenAPI document.", answer=dict[str, Any], role=None),
            line("/api", self.about, "Version, spiders, and limits of the service, and the role of this client.",
                 answer=About),
            line("/api/session", self.log_in, "Log in: exchange a token for a session cookie.", method="POST",
                 body=Login, answer=Session, role=None, refusals=(401,)),
            line("/api/session", self.log_out, "Log out: delete the session cookie.", method="DELETE", status=204,
                 role=None),
            line("/api/events", self.events,
                 "Live events (SSE): `sample` after each poll of a job, `job` when a job's state "
                 "changes, and `missed` with the number of events that this client was too slow to receive.",
                 query=EventsQuery, media="text/event-stream", refusals=(503,)),
        ]  # fmt: skip

    async def health(self, _: ApiRequest[NoParameters, None]) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(self, _: ApiRequest[NoParameters, None]) -> Response:
        monitor = self._service.monitor
        if not monitor.is_ready:
            # The reason may name a server, so it goes to the log and to clients with a token only.
            raise ApiError(503, "the service cannot list its jobs", headers={"retry-after": "5"})
        return PlainTextResponse("ok\n")

    async def metrics(self, _: ApiRequest[NoParameters, None]) -> Response:
        service = self._service
        return Response(exposition(service.monitor, service.hub, now=service.clock.epoch()), media_type=CONTENT_TYPE)

    async def openapi(self, _: ApiRequest[NoParameters, None]) -> Response:
        return json(document(self.table, secured=not self._service.authenticator.is_open))

    async def about(self, request: ApiRequest[NoParameters, None]) -> About:
        service = self._service
        return About(
            version=VERSION,
            only=service.only,
            place="fleet" if service.directory.place == "fleet" else "embedded",
            role=request.role,
            spiders=sorted(service.spiders),
            least_delay=service.base.delay,
            may_start=service.directory.may_start and request.role == "write" and service.only != "pages",
        )

    async def log_in(self, request: ApiRequest[NoParameters, Login]) -> Response:
        keeper = self._service.authenticator
        role = "write" if keeper.is_open else keeper.role_of(request.body.token)
        if role is None:
            raise ApiError(401, "invalid token", headers={"www-authenticate": "Bearer"})
        answer = json(Session(role=role))
        answer.set_cookie(
            COOKIE,
            keeper.session(role),
            max_age=int(SESSION_SECONDS),
            httponly=True,
            samesite="strict",
            secure=request.headers.get("x-forwarded-proto") == "https",
        )
        return answer

    async def log_out(self, _: ApiRequest[NoParameters, None]) -> Response:
        answer = Response(status_code=204)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    async def events(self, request: ApiRequest[EventsQuery, None]) -> Response:
        self._service.hub.check()
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._service.hub.listen(request.query.job), 200, headers, "text/event-stream")


def table(service: ServiceState, only: Part = "") -> list[Endpoint]:
    """Return the endpoints of the given part; with an empty `only`, all endpoints."""
    front = ServiceEndpoints(service)
    parts: tuple[Any, ...] = (
        front,
        JobEndpoints(service),
        HistoryEndpoints(service),
        FleetEndpoints(service),
        SiteEndpoints(service),
        PageEndpoints(service),
    )
    found = [endpoint for part in parts for endpoint in part.endpoints()]
    front.table = [one for one in found if not only or one.part in ("", only)]
    return list(front.table)


def application(service: ServiceState, *, hosts: Sequence[str] = (), rate: float = 100.0) -> ASGIApp:
    """Build the ASGI application. During its lifespan it polls the jobs."""
    files = Mount("/", StaticFiles(directory=STATIC, html=True))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(service.monitor.run())
        try:
            yield
        finally:
            service.hub.close()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await service.monitor.aclose()
            await service.directory.aclose()

    app = Starlette(
        routes=[*routes(table(service, service.only)), files],
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_problem},
    )
    app.router.redirect_slashes = False
    return AccessGuard(app, service.authenticator, hosts=hosts, rate=rate, clock=service.clock)


async def _http_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem_response(error.status_code, error.detail, headers=error.headers)
