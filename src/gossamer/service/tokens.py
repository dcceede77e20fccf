"""Who may do what: tokens from the environment or from files, and the cookie that stands for one in a browser."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from gossamer.clock import Clock
from gossamer.errors import ConfigError
from gossamer.service.shapes import Role

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
