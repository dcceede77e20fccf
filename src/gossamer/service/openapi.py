"""The OpenAPI document, made from the table of endpoints and their shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gossamer.service.routing import JSON, MEANINGS, Endpoint
from gossamer.service.shapes import JOB_NAME, Problem
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
