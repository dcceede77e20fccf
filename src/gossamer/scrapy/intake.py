"""Findings of other crawlers as requests of a Scrapy project's job, with the keys that its scheduler gives them."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

from scrapy import Request as ScrapyRequest
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object
from scrapy.utils.project import get_project_settings
from scrapy.utils.request import RequestFingerprinter, RequestFingerprinterProtocol

from gossamer.errors import ConfigError
from gossamer.imports.importer import ImportedFingerprint, ImportedRequest, stand_ins
from gossamer.model import Request
from gossamer.scrapy.fingerprints import ScrapyRedisFingerprinter
from gossamer.scrapy.storing import from_fields, key_of, past_the_filter
from gossamer.urls import KeyOf


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
