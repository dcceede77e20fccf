"""Scrapy requests: packed, fingerprinted, and imported."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter, OrderedDict, defaultdict
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from msgspec.msgpack import Ext
from scrapy import Item, Spider
from scrapy import Request as ScrapyRequest
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object
from scrapy.utils.project import get_project_settings
from scrapy.utils.request import RequestFingerprinter, RequestFingerprinterProtocol
from siphashc import siphash
from w3lib.url import canonicalize_url

from gossamer import model, urls
from gossamer.errors import ConfigError, GossamerError
from gossamer.imports.importer import ImportedFingerprint, ImportedRequest, stand_ins
from gossamer.model import Request
from gossamer.urls import KeyOf


class ScrapyRedisFingerprinter:
    """For `REQUEST_FINGERPRINTER_CLASS`: what a dupefilter of scrapy-redis has seen is then known by the same name."""

    def fingerprint(self, request: ScrapyRequest) -> bytes:
        """SHA-1 over method, canonical URL and body; Scrapy's own has headers in it too, and so another value."""
        told = {"method": request.method, "url": canonicalize_url(request.url), "body": (request.body or b"").hex()}
        return hashlib.sha1(json.dumps(told, sort_keys=True).encode(), usedforsecurity=False).digest()


_TUPLE, _SET, _FROZENSET, _PAIRS, _WHOLE, _DATETIME, _DATE, _DECIMAL, _ITEM, _TIME, _SPAN, _UUID = range(1, 13)
_TEXTS: dict[int, Any] = {
    _WHOLE: int,
    _DATETIME: datetime.fromisoformat,
    _DATE: date.fromisoformat,
    _DECIMAL: Decimal,
    _TIME: time.fromisoformat,
    _UUID: UUID,
}
"""Kinds that are kept as text, and how it is read."""
_DEEPEST = 100
Kind = TypeVar("Kind")
_encode = msgspec.msgpack.Encoder().encode


class NotSerializable(ValueError):
    """A value that is neither JSON nor one of the few other kinds that come back as they were."""


def pack(fields: dict[str, Any]) -> bytes:
    """Named values as bytes; NotPlain says which part of which field cannot be stored."""
    return _encode({name: _plain(value, name, 0) for name, value in fields.items()})


def unpack(data: bytes) -> Any:
    """The value again. No code is imported or run for it."""
    return msgspec.msgpack.decode(data, ext_hook=_revive)


def loaded_class(path: str, kind: type[Kind]) -> type[Kind]:
    """The class of this name if the project has it loaded and it is of this kind; nothing is imported."""
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ValueError(f"{path} is not a {kind.__name__} class that this project has loaded")
    return found


def _plain(value: Any, name: str, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if depth > _DEEPEST:
        raise NotSerializable(f"{name} is nested too deeply")
    kind = type(value)
    if isinstance(value, str) and not isinstance(value, Enum):
        return _text(value, name)
    if isinstance(value, float) and not isinstance(value, Enum):
        return float(value)
    if kind is bytes:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**64 else Ext(_WHOLE, str(value).encode())
    if kind is list:
        return [_plain(part, f"{name}[{place}]", depth + 1) for place, part in enumerate(value)]
    if kind in (dict, OrderedDict, defaultdict):
        return _mapping(value, name, depth)
    if kind in (tuple, set, frozenset):
        code = _TUPLE if kind is tuple else _SET if kind is set else _FROZENSET
        return Ext(code, _encode([_plain(part, f"{name}[{place}]", depth + 1) for place, part in enumerate(value)]))
    if kind in (datetime, date, time):
        code = _DATETIME if kind is datetime else _DATE if kind is date else _TIME
        return Ext(code, value.isoformat().encode())
    if kind is timedelta:
        return Ext(_SPAN, _encode([value.days, value.seconds, value.microseconds]))
    if kind in (Decimal, UUID):
        return Ext(_DECIMAL if kind is Decimal else _UUID, str(value).encode())
    if isinstance(value, Item):
        fields = _mapping(dict(value), name, depth)
        return Ext(_ITEM, _encode([f"{kind.__module__}.{kind.__qualname__}", fields]))
    raise NotSerializable(f"{name} is {_described(value)}, which JSON or msgpack cannot hold")


def _text(value: str, name: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotSerializable(f"{name} has half a character in it, which UTF-8 cannot hold") from None
    return str(value)


def _mapping(value: dict[Any, Any], name: str, depth: int) -> Any:
    if all(type(key) is str for key in value):
        return {_text(key, name): _plain(part, f"{name}[{key!r}]", depth + 1) for key, part in value.items()}
    pairs = [
        [_plain(key, f"a key of {name}", depth + 1), _plain(part, f"{name}[{key!r}]", depth + 1)]
        for key, part in value.items()
    ]
    return Ext(_PAIRS, _encode(pairs))


def _described(value: Any) -> str:
    word = getattr(value, "__qualname__", "")
    if callable(value) and word:
        return f"the function {word}"
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def _revive(code: int, data: memoryview) -> Any:
    raw = bytes(data)
    if code in _TEXTS:
        return _TEXTS[code](raw.decode())
    inner = unpack(raw)
    if code == _SPAN:
        return timedelta(*inner)
    if code == _PAIRS:
        return dict(inner)
    if code == _ITEM:
        return loaded_class(inner[0], Item)(inner[1])
    containers: dict[int, Any] = {_TUPLE: tuple, _SET: set, _FROZENSET: frozenset}
    if code not in containers:
        raise ValueError(f"kind {code} is of a later version")
    return containers[code](inner)


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
    except NotSerializable as error:
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
        body=pack(kept),
    )


def restore(kept: model.Request, spider: Spider) -> ScrapyRequest:
    """Scrapy's request again, of its own class; ValueError if this spider cannot handle it."""
    if kept.label != LABEL:
        # One that was added by hand, or imported as a plain address.
        headers = {name: [value] for name, value in (kept.headers or {}).items()}
        return ScrapyRequest(kept.url, method=kept.method, headers=headers, body=kept.body, priority=kept.priority)
    try:
        fields = unpack(kept.body)
        fields.setdefault("url", kept.url)
        name = fields.pop("_class", None)
        # Without its class: Scrapy would import any that the store names.
        kind = loaded_class(name, ScrapyRequest) if name else ScrapyRequest
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


def project_settings() -> BaseSettings:
    """The settings of the Scrapy project in the current folder; Scrapy's own where there is none."""
    return get_project_settings()


class ScrapyKeys:
    """How requests for plain addresses are named in jobs of the project in the current folder."""

    def __init__(self) -> None:
        self._fingerprint = _fingerprinter(project_settings()).fingerprint

    def plain(self, secret: bytes, url: str) -> int:
        """The name of one that is filtered."""
        return key_of(secret, self._fingerprint(ScrapyRequest(url)))

    def below(self, parent: int, number: int) -> KeyOf:
        """The name of one of those that the page of a request led to past the filter, counted from 1; retries too."""
        nonce = past_the_filter(parent, number)
        return lambda secret, url: key_of(secret, self._fingerprint(ScrapyRequest(url)), nonce)


class ScrapyMaker:
    """Requests for the workers of `gossamer.scrapy`."""

    def __init__(self, settings: BaseSettings, secret: bytes, *, site_by: str, from_scrapy_redis: bool) -> None:
        self._secret = secret
        self.changed: Counter[str] = Counter()
        self._site_by = site_by
        self._fingerprinter = _fingerprinter(settings)
        if from_scrapy_redis and not isinstance(self._fingerprinter, ScrapyRedisFingerprinter):
            raise ConfigError(
                "scrapy-redis makes fingerprints of its own, by which this project would not know its pages",
                hint='set REQUEST_FINGERPRINTER_CLASS = "gossamer.scrapy.ScrapyRedisFingerprinter" in its settings',
            )

    def request(self, found: ImportedRequest) -> Request | str:
        if found.is_sitemap:
            return "a sitemap that a sitemap lists: fetch it, and import the file"
        fields = dict(found.fields or {"url": found.url})
        try:
            plain_request = ScrapyRequest(
                found.url, method=found.method, body=found.body, meta=fields.get("meta") or None
            )
            fingerprint = self._fingerprinter.fingerprint(plain_request)
            kept = from_fields(fields, key=key_of(self._secret, fingerprint), site_by=self._site_by)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return str(error)
        if fields.get("dont_filter") and not plain_request.meta.get("is_start_request"):
            # A name of its own, but the same when it is imported another time.
            nonce = blake2b(kept.body, digest_size=16).digest()
            return from_fields(fields, key=key_of(self._secret, fingerprint, nonce), site_by=self._site_by)
        return kept

    def seen(self, seen: ImportedFingerprint, shards: int) -> list[Request] | str:
        return stand_ins(key_of(self._secret, seen.fingerprint), seen.fingerprint.hex(), shards)


def _fingerprinter(settings: BaseSettings) -> RequestFingerprinterProtocol:
    kind = load_object(settings["REQUEST_FINGERPRINTER_CLASS"])
    if kind is RequestFingerprinter:
        return RequestFingerprinter()
    try:
        made: RequestFingerprinterProtocol = kind()
    except TypeError as error:
        raise ConfigError(
            f"{settings['REQUEST_FINGERPRINTER_CLASS']} cannot be made without a crawl: {error}",
            hint="what it makes fingerprints of cannot be imported",
        ) from None
    return made
