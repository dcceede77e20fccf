"""Scrapy's requests as the frontier keeps them: whole, in msgpack, with the names of callbacks in place of code."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec
from scrapy import Request as ScrapyRequest
from scrapy import Spider
from siphashc import siphash

from gossamer import model, urls
from gossamer.errors import GossamerError
from gossamer.scrapy import plain

LABEL = "scrapy"
"""The label of requests whose body is one of Scrapy's requests."""
TICKET = "_gossamer"
"""The key in `meta` that leads from a request under way, and its copies, to what was leased. It is never stored."""
_HIGHEST = 1_000_000
_DEFAULTS: tuple[tuple[str, Any], ...] = (
    ("callback", None), ("errback", None), ("method", "GET"), ("headers", {}), ("body", b""), ("cookies", {}),
    ("meta", {}), ("encoding", "utf-8"), ("priority", 0), ("dont_filter", False), ("flags", []), ("cb_kwargs", {}),
)  # fmt: skip


class Unstorable(GossamerError):
    """A request with something in it that only this process could use."""


def store(request: ScrapyRequest, spider: Spider, *, key: int, site_by: str = "host") -> model.Request:
    """The request for the frontier; Unstorable names the request and the field that cannot be kept."""
    for field in ("callback", "errback"):
        function = getattr(request, field)
        if function is not None and not _is_method(function, spider):
            raise Unstorable(
                f"{request}: {field} is {_named(function)}, not a method of the spider {spider.name!r}",
                hint="only the name travels to other processes: make it a method, and pass values by cb_kwargs",
            )
    try:
        return from_fields(request.to_dict(spider=spider), key=key, site_by=site_by)
    except plain.NotSerializable as error:
        raise Unstorable(
            f"{request}: {error}", hint="pass plain values: text, numbers, bytes, lists, dicts, dates, scrapy.Item"
        ) from None


def from_fields(fields: dict[str, Any], *, key: int, site_by: str = "host") -> model.Request:
    """The request for the frontier, of what `Request.to_dict` gives; NotPlain names what cannot be kept."""
    url, meta = fields["url"], fields.get("meta") or {}
    address = urls.normal(url)
    depth, priority = meta.get("depth", 0), fields.get("priority", 0)
    kept = {field: fields[field] for field, default in _DEFAULTS if fields.get(field, default) != default}
    kept["meta"] = {name: value for name, value in meta.items() if name != TICKET}
    if not kept["meta"]:
        del kept["meta"]
    if url != address:
        kept["url"] = url
    if "_class" in fields:
        kept["_class"] = fields["_class"]
    return model.Request(
        address or url,
        key,
        urls.site(address, by=site_by) if address is not None else _place(url),
        # The order is that of the frontier, which knows fewer priorities; the request keeps its own.
        max(-_HIGHEST, min(_HIGHEST, priority)),
        max(0, min(_HIGHEST, depth)) if isinstance(depth, int) else 0,
        label=LABEL,
        body=plain.pack(kept),
    )


def restore(kept: model.Request, spider: Spider) -> ScrapyRequest:
    """Scrapy's request again, of its own class; ValueError if this spider cannot handle it."""
    if kept.label != LABEL:
        # One that was added by hand, or imported as a plain address.
        headers = {name: [value] for name, value in (kept.headers or {}).items()}
        return ScrapyRequest(kept.url, method=kept.method, headers=headers, body=kept.body, priority=kept.priority)
    try:
        fields = plain.unpack(kept.body)
        fields.setdefault("url", kept.url)
        name = fields.pop("_class", None)
        # Without its class: Scrapy would import any that the store names.
        kind = plain.loaded_class(name, ScrapyRequest) if name else ScrapyRequest
        fields["meta"] = dict(fields.get("meta", {}))
        for field in ("callback", "errback"):
            if field in fields:
                fields[field] = getattr(spider, fields[field])
        return kind(**{field: value for field, value in fields.items() if field in kind.attributes})
    except AttributeError as error:
        raise ValueError(f"the spider has no such method any more: {error}") from None
    except (msgspec.DecodeError, TypeError, KeyError) as error:
        raise ValueError(f"not a request that this version can read: {error}") from None


def key_of(secret: bytes, fingerprint: bytes, nonce: bytes = b"") -> int:
    """The key of a request with this fingerprint; with a nonce, one of several requests that are alike."""
    return int(siphash(secret, b"\0".join((b"scrapy", fingerprint, nonce)))) >> 1


def past_the_filter(parent: int, number: int) -> bytes:
    """The nonce of a request that is not filtered: it follows from the request whose page asked for it."""
    return b"%d %d" % (parent, number)


def _is_method(function: Any, spider: Spider) -> bool:
    name = getattr(function, "__name__", "")
    return getattr(function, "__self__", None) is spider and getattr(spider, name, None) == function


def _named(function: Any) -> str:
    return getattr(function, "__qualname__", "") or repr(function)


def _place(url: str) -> str:
    """What stands for the site of an address that is not plain http: its host, or its scheme."""
    parts = urlsplit(url)
    return (parts.netloc.rpartition("@")[2] or parts.scheme).lower()
