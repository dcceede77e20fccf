"""Routing: validates requests against the endpoints' models, encodes responses, and maps errors to problems."""

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
from gossamer.service.schemas import MOMENTS, NoParameters, Problem, Role

log = logging.getLogger("gossamer.service")
JSON = "application/json"
_SMALL_BYTES = 1024 * 1024
Part = Literal["", "tasks", "pages"]
Query = TypeVar("Query")
Body = TypeVar("Body")
ERROR_CODES = {
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
STATUS_DESCRIPTIONS = {
    400: "Invalid parameter or body.",
    401: "Missing or invalid token.",
    403: "The token's role or the request's origin does not allow this.",
    404: "Not found.",
    409: "Not possible in the job's current state, or not supported by its frontier.",
    413: "The body is too large.",
    415: "The body must be application/json.",
    429: "Too many requests from this address. See Retry-After.",
    503: "The job's frontier does not respond, or the service is overloaded. See Retry-After.",
}
encode = msgspec.json.Encoder().encode


class ApiError(errors.GossamerError):
    """An error that the API returns to the client as a `Problem` with this status."""

    def __init__(self, status: int, message: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[Query, Body]):
    """A request with validated parameters and body."""

    path: Mapping[str, str]
    query: Query
    body: Body
    role: Role
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One method of one path. The handler returns a value of type `answer`, or a complete response."""

    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    handler: Callable[[ApiRequest[Any, Any]], Awaitable[Any]]
    summary: str
    tag: str
    query: type[Any] = NoParameters
    body: type[Any] | None = None
    answer: Any = None
    status: int = 200
    media: str = JSON
    """The content type, if the handler returns a complete response."""
    role: Role | None = "read"
    """The role that a client needs; None: no token needed."""
    refusals: Sequence[int] = ()
    part: Part = ""
    """The part of the API (`--only`) that includes it; empty: every part."""


def json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Encode a value as a JSON response."""
    return Response(encode(value), status, dict(headers or {}), JSON)


def problem_response(status: int, message: str, hint: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """Build a JSON response with a `Problem`."""
    return json(Problem(error=ERROR_CODES.get(status, "error"), message=message, hint=hint), status, headers)


def error_response(error: BaseException) -> Response:
    """Map an exception to a problem response. An unexpected one is logged, and clients get only a 500."""
    match error:
        case ApiError():
            return problem_response(error.status, str(error), error.hint, error.headers)
        case errors.JobMissing():
            return problem_response(404, str(error), error.hint)
        case errors.ConfigError() | msgspec.ValidationError():
            return problem_response(400, str(error), getattr(error, "hint", ""))
        case errors.Held():
            return problem_response(409, str(error), error.hint)
        case errors.JobRunning():
            return problem_response(409, str(error), "POST /api/jobs/NAME/stop first")
        case errors.JobStopped():
            # The error's own hint is for the command line.
            return problem_response(409, str(error), "POST /api/jobs/NAME/resume first")
        case errors.OwnerGone():
            return problem_response(409, "the crawl has just ended", "retry the request")
        case errors.FrontierError():
            return problem_response(503, str(error), error.hint, {"retry-after": "5"})
    log.error("request failed", exc_info=error)
    return problem_response(500, "internal error", "see the log of the service")


def routes(endpoints: Iterable[Endpoint]) -> list[BaseRoute]:
    """Build one route per path, which dispatches by method."""
    found: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        found.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [Route(path, Resource(methods)) for path, methods in found.items()]


class Resource:
    """The endpoints of one path, by method."""

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
            return problem_response(405, f"{request.method} is not allowed here", headers={"allow": self._allowed})
        try:
            value = await endpoint.handler(await _parse_request(endpoint, request))
        except Exception as error:  # a failed request must not stop the service
            return error_response(error)
        if isinstance(value, Response):
            return value
        return Response(status_code=204) if value is None else json(value, endpoint.status)


def _decode_body(data: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        # In JSON, 22.0 is an integer.
        plain = msgspec.json.decode(data) if len(data) <= _SMALL_BYTES else None
        if not isinstance(plain, dict) or not any(isinstance(value, float) for value in plain.values()):
            raise
        whole = {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in plain.items()
        }
        return msgspec.convert(whole, kind)


def _validation_error(error: msgspec.ValidationError, kind: type[Any]) -> ApiError:
    """The error for an invalid value; for an unknown name, the hint lists the known ones."""
    is_unknown = str(error).startswith("Object contains unknown field") and " - at " not in str(error)
    known = sorted(one.encode_name for one in msgspec.structs.fields(kind)) if is_unknown else ()
    return ApiError(400, str(error), hint=f"use one of: {', '.join(known)}" if known else "")


def _query_error(error: msgspec.ValidationError, given: Mapping[str, str], kind: type[Any]) -> ApiError:
    """The error for an invalid query parameter; for a time, the hint shows the expected format."""
    name = str(error).rpartition(" - at `$.")[2].rstrip("`")
    if name not in MOMENTS or name not in given:
        return _validation_error(error, kind)
    return ApiError(
        400,
        f"{name}: {given[name][:80]!r} is not a time in epoch seconds",
        hint=f"write {name}=1790000000, as in a page's `fetched_at`, or use the output of `date -d 2026-01-31 +%s`",
    )


async def _parse_request(endpoint: Endpoint, request: Request) -> ApiRequest[Any, Any]:
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise ApiError(400, f"duplicate parameter {name[:80]!r}")
        given[name] = value
    try:
        query = msgspec.convert(given, endpoint.query, strict=False)
    except msgspec.ValidationError as error:
        raise _query_error(error, given, endpoint.query) from None
    for name in given:
        if getattr(query, name) is None:
            raise ApiError(400, f"{name}: null is not allowed in a query string", hint=f"omit {name}")
    body = None
    if endpoint.body is not None:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:
            # A page of another site can send forms and text/plain without a CORS preflight.
            raise ApiError(415, "the body must be application/json", hint="Content-Type: application/json")
        try:
            body = _decode_body(await request.body(), endpoint.body)
        except msgspec.ValidationError as error:
            raise _validation_error(error, endpoint.body) from None
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise ApiError(400, f"the body is not valid JSON: {error}"[:200]) from None
    role: Role = request.scope.get("gossamer.role", "read")
    return ApiRequest(request.path_params, query, body, role, request.headers)
