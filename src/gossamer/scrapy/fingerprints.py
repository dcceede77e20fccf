"""Fingerprints as scrapy-redis makes them, for crawls that are taken over from it."""

from __future__ import annotations

import hashlib
import json

from scrapy import Request as ScrapyRequest
from w3lib.url import canonicalize_url


class ScrapyRedisFingerprinter:
    """For `REQUEST_FINGERPRINTER_CLASS`: what a dupefilter of scrapy-redis has seen is then known by the same name."""

    def fingerprint(self, request: ScrapyRequest) -> bytes:
        """SHA-1 over method, canonical URL and body; Scrapy's own has headers in it too, and so another value."""
        told = {"method": request.method, "url": canonicalize_url(request.url), "body": (request.body or b"").hex()}
        return hashlib.sha1(json.dumps(told, sort_keys=True).encode(), usedforsecurity=False).digest()
