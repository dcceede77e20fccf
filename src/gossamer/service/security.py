"""Access to the API: tokens, rate limits, and size limits."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import secrets
import stat
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gossamer.clock import Clock
from gossamer.errors import ConfigError
from gossamer.service.routing import ApiError, problem_response
from gossamer.service.schemas import Role

COOKIE = "gossamer"
_PLAIN = re.compile(r"[!-~]+")
SESSION_SECONDS = 12 * 3600.0
VARIABLES: Mapping[Role, str] = {"read": "GOSSAMER_READ_TOKEN", "write": "GOSSAMER_WRITE_TOKEN"}
_SHORTEST, _FEWEST_DISTINCT = 16, 8


def read_tokens(environment: Mapping[str, str], files: Mapping[Role, Path | None]) -> dict[Role, str]:
    """Read the tokens from the environment or files; ConfigError for a weak token or a file readable by others."""
    found: dict[Role, str] = {}
    for role, variable in VARIABLES.items():
        path = files.get(role)
        if path is not None:
            found[role] = _valid_token(_from_file(path), str(path))
        elif variable in environment:
            found[role] = _valid_token(environment[variable].strip(), variable)
    if len(set(found.values())) < len(found):
        raise ConfigError("the read token and the write token are the same", hint="create two different tokens")
    return found


def _from_file(path: Path) -> str:
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"{path} is readable by other users", hint=f"chmod 600 {path}")
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or 'not text'}") from None


def _valid_token(token: str, source: str) -> str:
    if len(token) < _SHORTEST or len(set(token)) < _FEWEST_DISTINCT or not _PLAIN.fullmatch(token):
        raise ConfigError(
            f"{source}: the token is too weak: it must have at least {_SHORTEST} printable ASCII characters, "
            f"{_FEWEST_DISTINCT} of them different",
            hint='create one: python -c "import secrets; print(secrets.token_urlsafe(32))"',
        )
    return token


class Authenticator:
    """Maps tokens and session cookies to roles. If no token is configured, every client has full access."""

    def __init__(self, tokens: Mapping[Role, str], *, clock: Clock) -> None:
        # Digests have a fixed length, so the time of a comparison does not reveal the length of a token.
        self._digests = {role: _digest(token) for role, token in tokens.items()}
        self._key = secrets.token_bytes(32)
        self._clock = clock

    @property
    def is_open(self) -> bool:
        """Whether no token is configured."""
        return not self._digests

    def role_of(self, token: str) -> Role | None:
        """The role of a token, or None; compares with every known token, in constant time."""
        given = _digest(token)
        matches = {role: hmac.compare_digest(given, known) for role, known in self._digests.items()}
        return "write" if matches.get("write") else "read" if matches.get("read") else None

    def session(self, role: Role) -> str:
        """Create a session cookie, valid for 12 hours or until the service ends."""
        text = f"{role}.{int(self._clock.epoch() + SESSION_SECONDS)}"
        return f"{text}.{self._sign(text)}"

    def role_of_session(self, cookie: str) -> Role | None:
        """The role of a session cookie; None if it is forged or expired."""
        text, _, signature = cookie.rpartition(".")
        if not text or not hmac.compare_digest(signature.encode(), self._sign(text).encode()):
            return None
        role, _, until = text.partition(".")
        if float(until) < self._clock.epoch():
            return None
        return "write" if role == "write" else "read"

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


MOST_BODY_BYTES = 8 * 1024 * 1024
_SEND_SECONDS, _BODY_SECONDS = 20.0, 20.0
_OPEN = ("/healthz", "/readyz", "/api/session", "/openapi.json")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Sequence[tuple[bytes, bytes]] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


class RateLimiter:
    """Token bucket per client address; the least recently seen addresses are dropped beyond `most`."""

    def __init__(self, rate: float, burst: float, *, clock: Clock, most: int = 4096) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._most = most
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def wait(self, address: str, cost: float = 1.0) -> float:
        """Take one token; returns 0, or the seconds until one is available."""
        now = self._clock.monotonic()
        level, at = self._levels.pop(address, (self._burst, now))
        level = min(self._burst, level + (now - at) * self._rate)
        is_served = level >= cost
        self._levels[address] = (level - cost if is_served else level, now)
        if len(self._levels) > self._most:
            self._levels.popitem(last=False)
        return 0.0 if is_served else (cost - level) / self._rate


class AccessGuard:
    """Outermost ASGI middleware: checks host, origin, rate, body size, and role of every request."""

    def __init__(
        self, app: ASGIApp, authenticator: Authenticator, *, hosts: Iterable[str], rate: float, clock: Clock
    ) -> None:
        self._app = app
        self._doorkeeper = authenticator
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._limiter = RateLimiter(rate, 4 * rate, clock=clock)
        self._failures = RateLimiter(rate / 100, rate / 5, clock=clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        send = _with_send_timeout(_with_headers(send, scope["path"]))
        headers = _headers(scope)
        refused = self._check(scope, headers)
        if refused is not None:
            status, message, extra = refused
            await problem_response(status, message, headers=extra)(scope, receive, send)
            return
        await self._app(scope, _with_body_limit(receive), send)

    def _check(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str, dict[str, str]] | None:
        host = headers.get("host", "")
        if not self._is_allowed_host(host):
            return 403, "unknown Host header; allow it with --allow-host", {}
        # A link on another site may lead to the dashboard's files, but not to the API.
        is_cross_site = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        is_static = scope["method"] in _SAFE_METHODS and not _needs_token(scope["path"])
        if (is_cross_site or not _is_same_origin(headers.get("origin"), host)) and not is_static:
            return 403, "cross-origin requests are not allowed", {}
        address = scope["client"][0] if scope.get("client") else ""
        if wait := self._limiter.wait(address):
            return 429, "too many requests", {"retry-after": str(max(1, round(wait)))}
        if _length(headers) > MOST_BODY_BYTES:
            return 413, f"the body is larger than {MOST_BODY_BYTES:,} bytes", {"connection": "close"}
        return self._authorize(scope, headers, address)

    def _authorize(
        self, scope: Scope, headers: Mapping[str, str], address: str
    ) -> tuple[int, str, dict[str, str]] | None:
        role = self._role(headers)
        scope["gossamer.role"] = role or "read"
        scope["gossamer.authenticated"] = role is not None
        is_login = scope["path"] == "/api/session" and scope["method"] == "POST"
        if is_login and (wait := self._failures.wait(address)):
            return 429, "too many login attempts", {"retry-after": str(max(1, round(wait)))}
        if role is None and _needs_token(scope["path"]):
            if wait := self._failures.wait(address):
                return 429, "too many requests without a valid token", {"retry-after": str(max(1, round(wait)))}
            return 401, "missing or invalid token", {"www-authenticate": "Bearer"}
        writes = scope["method"] not in _SAFE_METHODS and scope["path"] != "/api/session"
        if writes and role != "write":
            return 403, "the token is read-only", {}
        return None

    def _role(self, headers: Mapping[str, str]) -> Role | None:
        if self._doorkeeper.is_open:
            return "write"
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._doorkeeper.role_of(token.strip())
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return None
        return self._doorkeeper.role_of_session(morsel.value) if morsel is not None else None

    def _is_allowed_host(self, host: str) -> bool:
        """Whether the Host header is allowed, against DNS rebinding; IP addresses always are."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _needs_token(path: str) -> bool:
    """Whether a path requires a token; the dashboard's static files do not."""
    return path not in _OPEN and (path.startswith(("/api", "/metrics")))


def _is_same_origin(origin: str | None, host: str) -> bool:
    return origin is None or origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        # Duplicate headers are joined, so that every check sees both values.
        key, text = name.decode("latin-1"), value.decode("latin-1")
        found[key] = f"{found[key]},{text}" if key in found else text
    return found


def _length(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def _with_body_limit(receive: Receive) -> Receive:
    """Limit the size of a request body and the time to receive it."""
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        if taken < 0:
            return await receive()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                message = await receive()
        except TimeoutError:
            raise ApiError(400, "timed out waiting for the body") from None
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            if taken > MOST_BODY_BYTES:
                raise ApiError(
                    413, f"the body is larger than {MOST_BODY_BYTES:,} bytes", headers={"connection": "close"}
                )
            if not message.get("more_body"):
                # The body is complete: further messages only report a disconnect.
                taken = -1
        return message

    return bounded


def _with_headers(send: Send, path: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = list(message.get("headers", ()))
            given = {name.lower() for name, _ in own}
            own += [pair for pair in HEADERS if pair[0] not in given]
            if b"cache-control" not in given:
                own.append((b"cache-control", b"no-store" if _needs_token(path) else b"no-cache"))
            message = {**message, "headers": own}
        await send(message)

    return sending


def _with_send_timeout(send: Send) -> Send:
    """Disconnect a client that receives nothing for 20 seconds."""

    async def sending(message: Message) -> None:
        async with asyncio.timeout(_SEND_SECONDS):
            await send(message)

    return sending
