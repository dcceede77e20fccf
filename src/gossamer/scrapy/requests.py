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
    """For `REQUEST_FINGERPRINTER_CLASS`: computes the same fingerprints as the dupefilter of scrapy-redis."""

    def fingerprint(self, request: ScrapyRequest) -> bytes:
        """SHA-1 of method, canonical URL, and body; Scrapy's own includes headers, so its value differs."""
        fields = {"method": request.method, "url": canonicalize_url(request.url), "body": (request.body or b"").hex()}
        return hashlib.sha1(json.dumps(fields, sort_keys=True).encode(), usedforsecurity=False).digest()


_TUPLE, _SET, _FROZENSET, _PAIRS, _WHOLE, _DATETIME, _DATE, _DECIMAL, _ITEM, _TIME, _SPAN, _UUID = range(1, 13)
_TEXTS: dict[int, Any] = {
    _WHOLE: int,
    _DATETIME: datetime.fromisoformat,
    _DATE: date.fromisoformat,
    _DECIMAL: Decimal,
    _TIME: time.fromisoformat,
    _UUID: UUID,
}
"""Types that are stored as text, with the functions that parse it."""
_DEEPEST = 100
Kind = TypeVar("Kind")
_encode = msgspec.msgpack.Encoder().encode


class NotSerializable(ValueError):
    """A value that cannot be serialized: not JSON, and not one of the few other supported types."""


def pack(fields: dict[str, Any]) -> bytes:
    """Serialize fields; NotSerializable names the part of the field that cannot be stored."""
    return _encode({name: _serializable(value, name, 0) for name, value in fields.items()})


def unpack(data: bytes) -> Any:
    """Deserialize a value without importing or running any code."""
    return msgspec.msgpack.decode(data, ext_hook=_revive)


def loaded_class(path: str, kind: type[Kind]) -> type[Kind]:
    """The class with this name, if the project has loaded it and it is a subclass of `kind`; imports nothing."""
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ValueError(f"{path} is not a {kind.__name__} class that this project has loaded")
    return found


def _serializable(value: Any, name: str, depth: int) -> Any:
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
        return [_serializable(part, f"{name}[{place}]", depth + 1) for place, part in enumerate(value)]
    if kind in (dict, OrderedDict, defaultdict):
        return _mapping(value, name, depth)
    if kind in (tuple, set, frozenset):
        code = _TUPLE if kind is tuple else _SET if kind is set else _FROZENSET
        return Ext(
            code, _encode([_serializable(part, f"{name}[{place}]", depth + 1) for place, part in enumerate(value)])
        )
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
    raise NotSerializable(f"{name} is {_described(value)}, which cannot be stored")


def _text(value: str, name: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotSerializable(f"{name} contains a lone surrogate, which UTF-8 cannot encode") from None
    return str(value)


def _mapping(value: dict[Any, Any], name: str, depth: int) -> Any:
    if all(type(key) is str for key in value):
        return {_text(key, name): _serializable(part, f"{name}[{key!r}]", depth + 1) for key, part in value.items()}
    pairs = [
        [_serializable(key, f"a key of {name}", depth + 1), _serializable(part, f"{name}[{key!r}]", depth + 1)]
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
        raise ValueError(f"type {code} was written by a later version")
    return containers[code](inner)


LABEL = "scrapy"
"""Label of requests whose body is a serialized Scrapy request."""
TICKET = "_gossamer"
"""Key in `meta` that links a request, and its copies, to its ticket. It is never stored."""
_HIGHEST = 1_000_000
_DEFAULTS: tuple[tuple[str, Any], ...] = (
    ("callback", None), ("errback", None), ("method", "GET"), ("headers", {}), ("body", b""), ("cookies", {}),
    ("meta", {}), ("encoding", "utf-8"), ("priority", 0), ("dont_filter", False), ("flags", []), ("cb_kwargs", {}),
)  # fmt: skip


class Unstorable(GossamerError):
    """A request that contains a value only this process can use."""


def store(request: ScrapyRequest, spider: Spider, *, key: int, site_by: str = "host") -> model.Request:
    """Convert a Scrapy request for the frontier; Unstorable names the request and the field that cannot be stored."""
    for field in ("callback", "errback"):
        function = getattr(request, field)
        if function is not None and not _is_method(function, spider):
            raise Unstorable(
                f"{request}: {field} is {_named(function)}, not a method of the spider {spider.name!r}",
                hint="make it a method of the spider, and pass values in cb_kwargs; only the method's name is stored",
            )
    try:
        return from_fields(request.to_dict(spider=spider), key=key, site_by=site_by)
    except NotSerializable as error:
        raise Unstorable(
            f"{request}: {error}", hint="pass only text, numbers, bytes, lists, dicts, dates, and scrapy.Item"
        ) from None


def from_fields(fields: dict[str, Any], *, key: int, site_by: str = "host") -> model.Request:
    """Convert the result of `Request.to_dict` for the frontier; NotSerializable names what cannot be stored."""
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
        urls.site(address, by=site_by) if address is not None else _non_http_site(url),
        # The frontier supports fewer priorities; the stored request keeps its own.
        max(-_HIGHEST, min(_HIGHEST, priority)),
        max(0, min(_HIGHEST, depth)) if isinstance(depth, int) else 0,
        label=LABEL,
        body=pack(kept),
    )


def restore(kept: model.Request, spider: Spider) -> ScrapyRequest:
    """Rebuild the Scrapy request with its own class; ValueError if this spider cannot handle it."""
    if kept.label != LABEL:
        # A request that was added manually, or imported as a plain URL.
        headers = {name: [value] for name, value in (kept.headers or {}).items()}
        return ScrapyRequest(kept.url, method=kept.method, headers=headers, body=kept.body, priority=kept.priority)
    try:
        fields = unpack(kept.body)
        fields.setdefault("url", kept.url)
        name = fields.pop("_class", None)
        # Do not let Scrapy import the class: the store could name any.
        kind = loaded_class(name, ScrapyRequest) if name else ScrapyRequest
        fields["meta"] = dict(fields.get("meta", {}))
        for field in ("callback", "errback"):
            if field in fields:
                fields[field] = getattr(spider, fields[field])
        return kind(**{field: value for field, value in fields.items() if field in kind.attributes})
    except AttributeError as error:
        raise ValueError(f"the spider no longer has this method: {error}") from None
    except (msgspec.DecodeError, TypeError, KeyError) as error:
        raise ValueError(f"not a request that this version can read: {error}") from None


def key_of(secret: bytes, fingerprint: bytes, nonce: bytes = b"") -> int:
    """The key of a request with this fingerprint; a nonce distinguishes requests with the same fingerprint."""
    return int(siphash(secret, b"\0".join((b"scrapy", fingerprint, nonce)))) >> 1


def unfiltered_nonce(parent: int, number: int) -> bytes:
    """The nonce of a request with `dont_filter`, derived from the request whose page yielded it."""
    return b"%d %d" % (parent, number)


def _is_method(function: Any, spider: Spider) -> bool:
    name = getattr(function, "__name__", "")
    return getattr(function, "__self__", None) is spider and getattr(spider, name, None) == function


def _named(function: Any) -> str:
    return getattr(function, "__qualname__", "") or repr(function)


def _non_http_site(url: str) -> str:
    """The site of a URL that is not plain HTTP: its host, or its scheme."""
    parts = urlsplit(url)
    return (parts.netloc.rpartition("@")[2] or parts.scheme).lower()


def project_settings() -> BaseSettings:
    """The settings of the Scrapy project in the current folder, or Scrapy's defaults."""
    return get_project_settings()


class ScrapyKeys:
    """Computes the keys of plain URLs in jobs of the Scrapy project in the current folder."""

    def __init__(self) -> None:
        self._fingerprint = _fingerprinter(project_settings()).fingerprint

    def plain(self, secret: bytes, url: str) -> int:
        """The key of a filtered request."""
        return key_of(secret, self._fingerprint(ScrapyRequest(url)))

    def below(self, parent: int, number: int) -> KeyOf:
        """The key function of the `number`-th unfiltered request (from 1) that a page yielded; retries included."""
        nonce = unfiltered_nonce(parent, number)
        return lambda secret, url: key_of(secret, self._fingerprint(ScrapyRequest(url)), nonce)


class ScrapyMaker:
    """Makes requests for workers that run `gossamer.scrapy`."""

    def __init__(self, settings: BaseSettings, secret: bytes, *, site_by: str, from_scrapy_redis: bool) -> None:
        self._secret = secret
        self.changed: Counter[str] = Counter()
        self._site_by = site_by
        self._fingerprinter = _fingerprinter(settings)
        if from_scrapy_redis and not isinstance(self._fingerprinter, ScrapyRedisFingerprinter):
            raise ConfigError(
                "this project's fingerprints differ from those of scrapy-redis, so it would fetch seen pages again",
                hint='set REQUEST_FINGERPRINTER_CLASS = "gossamer.scrapy.ScrapyRedisFingerprinter" in its settings',
            )

    def request(self, found: ImportedRequest) -> Request | str:
        if found.is_sitemap:
            return "a sitemap listed in a sitemap index: download it, and import the file"
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
            # A unique key, but the same one if the request is imported again.
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
            f"cannot create {settings['REQUEST_FINGERPRINTER_CLASS']} outside of a crawl: {error}",
            hint="import needs a REQUEST_FINGERPRINTER_CLASS that takes no arguments",
        ) from None
    return made
