"""From a table of endpoints to routes: input is checked by its shape, answers are encoded, errors become problems."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gossamer import errors
from gossamer.service.schemas import MOMENTS, Nothing, Problem, Role

log = logging.getLogger("gossamer.service")
JSON = "application/json"
_SMALL_BYTES = 1024 * 1024
Part = Literal["", "tasks", "pages"]
Query = TypeVar("Query")
Body = TypeVar("Body")
WORDS = {
    400: "bad-request",
    401: "unauthorized",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    409: "conflict",
    413: "too-large",
    415: "unsupported-media-type",
    429: "too-many-requests",
    500: "internal-error",
    503: "unavailable",
}
MEANINGS = {
    400: "The question is not understood.",
    401: "A token is needed, or this one is not known.",
    403: "This token, or this origin, may not do that.",
    404: "There is no such thing.",
    409: "Not in the state that the job is in, or not on its frontier.",
    413: "The body is too large.",
    415: "The body must be application/json.",
    429: "Too many requests from this address; see Retry-After.",
    503: "The job's frontier does not answer, or too much is asked at once; see Retry-After.",
}
encode = msgspec.json.Encoder().encode


class Refused(errors.GossamerError):
    """A request that is answered with a problem."""

    def __init__(self, status: int, message: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[Query, Body]):
    """A request whose input is good."""

    path: Mapping[str, str]
    query: Query
    body: Body
    role: Role
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One line of the table. A handler gives a value of `answer`, or a whole response."""

    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    handler: Callable[[ApiRequest[Any, Any]], Awaitable[Any]]
    summary: str
    tag: str
    query: type[Any] = Nothing
    body: type[Any] | None = None
    answer: Any = None
    status: int = 200
    media: str = JSON
    """What the answer is, where it is no value."""
    role: Role | None = "read"
    """None: for everybody."""
    refusals: Sequence[int] = ()
    part: Part = ""
    """The service that it belongs to; empty: to both."""


def json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as a response."""
    return Response(encode(value), status, dict(headers or {}), JSON)


def problem(status: int, message: str, hint: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """A problem as a response."""
    return json(Problem(error=WORDS.get(status, "error"), message=message, hint=hint), status, headers)


def refusal(error: BaseException) -> Response:
    """The problem that an error of ours means; what was not foreseen is logged, and told to nobody."""
    match error:
        case Refused():
            return problem(error.status, str(error), error.hint, error.headers)
        case errors.JobMissing():
            return problem(404, str(error), error.hint)
        case errors.ConfigError() | msgspec.ValidationError():
            return problem(400, str(error), getattr(error, "hint", ""))
        case errors.Held():
            return problem(409, str(error), error.hint)
        case errors.JobRunning():
            return problem(409, str(error), "stop it first")
        case errors.JobStopped():
            # Its own hint is for people at the command line.
            return problem(409, str(error), "resume it first")
        case errors.OwnerGone():
            return problem(409, "the crawl has just ended", "ask again")
        case errors.FrontierError():
            return problem(503, str(error), error.hint, {"retry-after": "5"})
    log.error("an answer failed", exc_info=error)
    return problem(500, "this went wrong inside the service", "its log says more")


def routes(endpoints: Iterable[Endpoint]) -> list[BaseRoute]:
    """Routes of the framework: one for each path, which knows all that can be done there."""
    found: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        found.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [Route(path, Resource(methods)) for path, methods in found.items()]


class Resource:
    """What answers at one path."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = dict(endpoints)
        if "GET" in endpoints:
            self._endpoints["HEAD"] = endpoints["GET"]
        self._allowed = ", ".join(sorted(self._endpoints))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        endpoint = self._endpoints.get(request.method)
        if endpoint is None:
            return problem(405, f"{request.method} is not for this", headers={"allow": self._allowed})
        try:
            value = await endpoint.handler(await _read(endpoint, request))
        except Exception as error:  # the fate of one request, never of the service
            return refusal(error)
        if isinstance(value, Response):
            return value
        return Response(status_code=204) if value is None else json(value, endpoint.status)


def _decoded(data: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        # To JSON 22.0 is a whole number.
        plain = msgspec.json.decode(data) if len(data) <= _SMALL_BYTES else None
        if not isinstance(plain, dict) or not any(isinstance(value, float) for value in plain.values()):
            raise
        whole = {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in plain.items()
        }
        return msgspec.convert(whole, kind)


def _unfit(error: msgspec.ValidationError, kind: type[Any]) -> Refused:
    """What does not fit its shape; where a name is not known, with those that are."""
    is_unknown = str(error).startswith("Object contains unknown field") and " - at " not in str(error)
    known = sorted(one.encode_name for one in msgspec.structs.fields(kind)) if is_unknown else ()
    return Refused(400, str(error), hint=f"known are {', '.join(known)}" if known else "")


def _misread(error: msgspec.ValidationError, given: Mapping[str, str], kind: type[Any]) -> Refused:
    """What is wrong with a parameter; times, which people write as days, with what to write instead."""
    name = str(error).rpartition(" - at `$.")[2].rstrip("`")
    if name not in MOMENTS or name not in given:
        return _unfit(error, kind)
    return Refused(
        400,
        f"{name}: {given[name][:80]!r} is no time in epoch seconds",
        hint=f"write {name}=1790000000, as `fetched_at` of a page has it, or `date -d 2026-01-31 +%s`",
    )


async def _read(endpoint: Endpoint, request: Request) -> ApiRequest[Any, Any]:
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise Refused(400, f"{name[:80]!r} is given twice")
        given[name] = value
    try:
        query = msgspec.convert(given, endpoint.query, strict=False)
    except msgspec.ValidationError as error:
        raise _misread(error, given, endpoint.query) from None
    for name in given:
        if getattr(query, name) is None:
            raise Refused(400, f"{name}: leave it out where there is nothing to say")
    body = None
    if endpoint.body is not None:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:
            # Forms and text/plain are what a page of another site could send without being asked.
            raise Refused(415, "the body must be application/json", hint="Content-Type: application/json")
        try:
            body = _decoded(await request.body(), endpoint.body)
        except msgspec.ValidationError as error:
            raise _unfit(error, endpoint.body) from None
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise Refused(400, f"the body is not JSON: {error}"[:200]) from None
    role: Role = request.scope.get("gossamer.role", "read")
    return ApiRequest(request.path_params, query, body, role, request.headers)
