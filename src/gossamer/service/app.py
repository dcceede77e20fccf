"""The service's application: its endpoints, and their OpenAPI description."""

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

from gossamer.service.jobs import Answers, FleetWork, Tasks
from gossamer.service.metrics import CONTENT_TYPE, exposition
from gossamer.service.pages import PagesView
from gossamer.service.routing import JSON, MEANINGS, ApiRequest, Endpoint, Part, Refused, json, problem, routes
from gossamer.service.schemas import JOB_NAME, About, AskEvents, Login, Nothing, Problem, Session
from gossamer.service.security import COOKIE, SESSION_SECONDS, AccessGuard
from gossamer.service.sites import SitesView
from gossamer.service.state import ServiceState
from gossamer.settings import VERSION

_REF = "#/components/schemas/{name}"
_PATHS = {"job": {"type": "string", "pattern": JOB_NAME, "maxLength": 100}}
_TAGS = {
    "service": "The service itself: what it is, whether it is well, and who may do what.",
    "tasks": "Jobs: submit them, look at them, steer them.",
    "answers": "What happened, and why.",
    "fleet": "Workers, sites, shards, regions.",
    "pages": "What was stored.",
}


def document(endpoints: Sequence[Endpoint], *, secured: bool = True) -> dict[str, Any]:
    """OpenAPI 3.1 for these endpoints."""
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
    """A parameter is left out; there is no way to write null in an address."""
    options = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if len(options) == 1:
        return dict(options[0])
    kept = {name: value for name, value in schema.items() if not (name == "default" and value is None)}
    return {**kept, "enum": [one for one in kept["enum"] if one is not None]} if "enum" in kept else kept


def _responses(endpoint: Endpoint, found: dict[int, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if endpoint.answer is not None:
        made[str(endpoint.status)] = {
            "description": "What was asked for.",
            "content": {JSON: {"schema": found[id(endpoint.answer)]}},
        }
    elif endpoint.status == 204:
        made["204"] = {"description": "Done."}
    else:
        content = {endpoint.media: {"schema": {"type": "string"}}}
        made[str(endpoint.status)] = {"description": "What was asked for.", "content": content}
    wrong = {400, 403, 429, *endpoint.refusals}
    wrong |= {401} if endpoint.role is not None else set()
    wrong |= {413, 415} if endpoint.body is not None else set()
    wrong |= {404, 409, 503} if "{job}" in endpoint.path else set()
    for status in sorted(wrong):
        made[str(status)] = {"description": MEANINGS[status], "content": {JSON: {"schema": found[id(Problem)]}}}
    return made


def _reachable(paths: Any, components: dict[str, Any]) -> set[str]:
    """The names of the schemas that something refers to."""
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


class Front:
    """Handlers that are about the service itself."""

    def __init__(self, service: ServiceState) -> None:
        self._service = service
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
        watch = self._service.watch
        if not watch.is_ready:
            # The reason may name a server: it is for those with a token, and for the log.
            raise Refused(503, "the jobs cannot be reached", headers={"retry-after": "5"})
        return PlainTextResponse("ok\n")

    async def metrics(self, _: ApiRequest[Nothing, None]) -> Response:
        service = self._service
        return Response(exposition(service.watch, service.hub, now=service.clock.epoch()), media_type=CONTENT_TYPE)

    async def openapi(self, _: ApiRequest[Nothing, None]) -> Response:
        return json(document(self.table, secured=not self._service.doorkeeper.is_open))

    async def about(self, asked: ApiRequest[Nothing, None]) -> About:
        service = self._service
        return About(
            version=VERSION,
            only=service.only,
            place="fleet" if service.directory.place == "fleet" else "embedded",
            role=asked.role,
            spiders=sorted(service.spiders),
            least_delay=service.base.delay,
            may_start=service.directory.may_start and asked.role == "write" and service.only != "pages",
        )

    async def log_in(self, asked: ApiRequest[Nothing, Login]) -> Response:
        keeper = self._service.doorkeeper
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
        self._service.hub.check()
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._service.hub.listen(asked.query.job), 200, headers, "text/event-stream")


def table(service: ServiceState, only: Part = "") -> list[Endpoint]:
    """All endpoints of the part that is served; without one, of both."""
    front = Front(service)
    parts: tuple[Any, ...] = (
        front,
        Tasks(service),
        Answers(service),
        FleetWork(service),
        SitesView(service),
        PagesView(service),
    )
    found = [endpoint for part in parts for endpoint in part.endpoints()]
    front.table = [one for one in found if not only or one.part in ("", only)]
    return list(front.table)


def application(service: ServiceState, *, hosts: Sequence[str] = (), rate: float = 100.0) -> ASGIApp:
    """The whole of it, as an ASGI application; while it lives it watches the jobs."""
    files = Mount("/", StaticFiles(directory=STATIC, html=True))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(service.watch.run())
        try:
            yield
        finally:
            service.hub.close()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await service.watch.aclose()
            await service.directory.aclose()

    app = Starlette(
        routes=[*routes(table(service, service.only)), files],
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_problem},
    )
    app.router.redirect_slashes = False
    return AccessGuard(app, service.doorkeeper, hosts=hosts, rate=rate, clock=service.clock)


async def _http_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, error.detail, headers=error.headers)
