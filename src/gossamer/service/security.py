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
from gossamer.service.routing import Refused, problem
from gossamer.service.schemas import Role

COOKIE = "gossamer"
_PLAIN = re.compile(r"[!-~]+")
SESSION_SECONDS = 12 * 3600.0
VARIABLES: Mapping[Role, str] = {"read": "GOSSAMER_READ_TOKEN", "write": "GOSSAMER_WRITE_TOKEN"}
_SHORTEST, _FEWEST_SIGNS = 16, 8


def read_tokens(environment: Mapping[str, str], files: Mapping[Role, Path | None]) -> dict[Role, str]:
    """The tokens that were set; one that could be guessed, or a file that others can read, is a ConfigError."""
    found: dict[Role, str] = {}
    for role, variable in VARIABLES.items():
        path = files.get(role)
        if path is not None:
            found[role] = _checked(_from_file(path), str(path))
        elif variable in environment:
            found[role] = _checked(environment[variable].strip(), variable)
    if len(set(found.values())) < len(found):
        raise ConfigError("the tokens for reading and for writing are the same", hint="make two")
    return found


def _from_file(path: Path) -> str:
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"{path} can be read by others", hint=f"chmod 600 {path}")
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or 'not text'}") from None


def _checked(token: str, source: str) -> str:
    if len(token) < _SHORTEST or len(set(token)) < _FEWEST_SIGNS or not _PLAIN.fullmatch(token):
        raise ConfigError(
            f"{source}: a token has at least {_SHORTEST} letters and digits, and is not easily guessed",
            hint='make one: python -c "import secrets; print(secrets.token_urlsafe(32))"',
        )
    return token


class Doorkeeper:
    """Tells the role of a request. Without any token, whoever reaches the service may do everything."""

    def __init__(self, tokens: Mapping[Role, str], *, clock: Clock) -> None:
        # Digests have one length, so that not even the length of a token can be found out by the time it takes.
        self._digests = {role: _digest(token) for role, token in tokens.items()}
        self._key = secrets.token_bytes(32)
        self._clock = clock

    @property
    def is_open(self) -> bool:
        """Whether no token is asked for."""
        return not self._digests

    def role_of(self, token: str) -> Role | None:
        """What this token allows; every known one is compared, whichever it is."""
        given = _digest(token)
        matches = {role: hmac.compare_digest(given, known) for role, known in self._digests.items()}
        return "write" if matches.get("write") else "read" if matches.get("read") else None

    def session(self, role: Role) -> str:
        """A cookie that is good for some hours, and until the service ends."""
        text = f"{role}.{int(self._clock.epoch() + SESSION_SECONDS)}"
        return f"{text}.{self._sign(text)}"

    def role_of_session(self, cookie: str) -> Role | None:
        """What a cookie allows; None for one that is not ours, or too old."""
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


class Buckets:
    """So many requests a second from one address, with some more at once; addresses that are quiet are forgotten."""

    def __init__(self, rate: float, burst: float, *, clock: Clock, most: int = 4096) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._most = most
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def wait(self, address: str, cost: float = 1.0) -> float:
        """Take one; the seconds to wait if there is none."""
        now = self._clock.monotonic()
        level, at = self._levels.pop(address, (self._burst, now))
        level = min(self._burst, level + (now - at) * self._rate)
        is_served = level >= cost
        self._levels[address] = (level - cost if is_served else level, now)
        if len(self._levels) > self._most:
            self._levels.popitem(last=False)
        return 0.0 if is_served else (cost - level) / self._rate


class AccessGuard:
    """The outermost layer."""

    def __init__(
        self, app: ASGIApp, doorkeeper: Doorkeeper, *, hosts: Iterable[str], rate: float, clock: Clock
    ) -> None:
        self._app = app
        self._doorkeeper = doorkeeper
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._buckets = Buckets(rate, 4 * rate, clock=clock)
        self._failures = Buckets(rate / 100, rate / 5, clock=clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        send = _hurried(_with_headers(send, scope["path"]))
        headers = _headers(scope)
        refused = self._refuse(scope, headers)
        if refused is not None:
            status, message, extra = refused
            await problem(status, message, headers=extra)(scope, receive, send)
            return
        await self._app(scope, _bounded(receive), send)

    def _refuse(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str, dict[str, str]] | None:
        host = headers.get("host", "")
        if not self._knows(host):
            return 403, "this service does not go by that name: see --allow-host", {}
        # A link on another page may lead to the dashboard, but not to anything behind it.
        is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        is_shown = scope["method"] in _SAFE_METHODS and not _is_guarded(scope["path"])
        if (is_foreign or not _is_own(headers.get("origin"), host)) and not is_shown:
            return 403, "pages of other sites may not use this service", {}
        address = scope["client"][0] if scope.get("client") else ""
        if wait := self._buckets.wait(address):
            return 429, "too many requests", {"retry-after": str(max(1, round(wait)))}
        if _length(headers) > MOST_BODY_BYTES:
            return 413, f"a body may have {MOST_BODY_BYTES:,} bytes", {"connection": "close"}
        return self._enter(scope, headers, address)

    def _enter(self, scope: Scope, headers: Mapping[str, str], address: str) -> tuple[int, str, dict[str, str]] | None:
        role = self._role(headers)
        scope["gossamer.role"] = role or "read"
        scope["gossamer.entered"] = role is not None
        is_login = scope["path"] == "/api/session" and scope["method"] == "POST"
        if is_login and (wait := self._failures.wait(address)):
            return 429, "too many tokens tried", {"retry-after": str(max(1, round(wait)))}
        if role is None and _is_guarded(scope["path"]):
            if wait := self._failures.wait(address):
                return 429, "too many requests without a good token", {"retry-after": str(max(1, round(wait)))}
            return 401, "a token is needed", {"www-authenticate": "Bearer"}
        writes = scope["method"] not in _SAFE_METHODS and scope["path"] != "/api/session"
        if writes and role != "write":
            return 403, "this token may only read", {}
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

    def _knows(self, host: str) -> bool:
        """A page that had its own name point here could not be told from ours; an address has no name to point."""
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


def _is_guarded(path: str) -> bool:
    """Whether a path is behind the door; the dashboard's files hold no data."""
    return path not in _OPEN and (path.startswith(("/api", "/metrics")))


def _is_own(origin: str | None, host: str) -> bool:
    return origin is None or origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        # Of two, which a good client does not send, both count: none may be meant for somebody else.
        key, text = name.decode("latin-1"), value.decode("latin-1")
        found[key] = f"{found[key]},{text}" if key in found else text
    return found


def _length(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def _bounded(receive: Receive) -> Receive:
    """A body that goes on for ever, or does not come, ends here."""
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        if taken < 0:
            return await receive()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                message = await receive()
        except TimeoutError:
            raise Refused(400, "the body did not come") from None
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            if taken > MOST_BODY_BYTES:
                raise Refused(413, f"a body may have {MOST_BODY_BYTES:,} bytes", headers={"connection": "close"})
            if not message.get("more_body"):
                # From here on one only waits for the client to leave.
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
                own.append((b"cache-control", b"no-store" if _is_guarded(path) else b"no-cache"))
            message = {**message, "headers": own}
        await send(message)

    return sending


def _hurried(send: Send) -> Send:
    """A client that takes nothing for so long is left."""

    async def sending(message: Message) -> None:
        async with asyncio.timeout(_SEND_SECONDS):
            await send(message)

    return sending
