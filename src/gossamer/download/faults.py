"""What pyreqwest raises, as errors of ours: it gives most causes as texts only."""

from __future__ import annotations

from pyreqwest.exceptions import BuilderError, ConnectError, DetailedPyreqwestError, RequestTimeoutError

from gossamer.download.proxies import Blame
from gossamer.errors import (
    BadCertificate,
    ConnectFailed,
    FetchError,
    OutOfMemory,
    ProtocolBroken,
    TimedOut,
    TlsRefused,
    TooLarge,
)

_HOST_WORDS = ("host unreachable", "network unreachable", "SOCKS error: connection refused", "ttl expired")
_PROXY_WORDS = (
    "tcp connect error",
    "failed to create underlying connection",
    "proxy authorization required",
    "authentication",
    "credentials not accepted",
    "error during SOCKS handshake",
)
_TLS_WORDS = (
    "certificate",
    "fatal alert",
    "peer is incompatible",
    "peer misbehaved",
    "corrupt message",
    "inappropriate message",
    "inappropriate handshake",
    "unexpected message",
    "cannot decrypt",
    "unsupported name type",
)
_ENDS = ("connection closed before message completed", "os error 104)", "os error 32)", "os error 10054)")
_REFUSALS = (
    "AccessDenied",
    "BadCertificate",
    "CertificateExpired",
    "CertificateRequired",
    "CertificateRevoked",
    "CertificateUnknown",
    "UnknownCA",
    "UnsupportedCertificate",
)
"""Alerts about our own certificate, or that there is none; with TLS 1.3 they come only after the handshake."""

_TLS_ENDS = ("without sending TLS close_notify", "tls handshake eof")
"""A connection that ended without a word. It may have a passing reason: it is tried again."""
_TLS_END_HINT = "it may be overloaded, or want a certificate of yours: --client-cert FILE"


def translate(error: Exception, where: str) -> FetchError:
    """The FetchError for whatever the client raised while talking to `where`."""
    if isinstance(error, FetchError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemory(f"{where}: no memory left for its answer")
    causes = _causes(error)
    text = f"{where}: {causes[-1] if causes else str(error) or type(error).__name__}"
    if isinstance(error, RequestTimeoutError):
        return TimedOut(
            f"{where}: no connection in time" if _connecting(causes) else f"{where}: no whole answer in time"
        )
    if causes and "head is too large" in causes[-1]:
        return TooLarge(f"{where}: too many or too long headers")
    if any(f"received fatal alert: {word}" in cause for cause in causes for word in _REFUSALS):
        return TlsRefused(text, hint="the server asks for a certificate of yours: --client-cert FILE")
    if isinstance(error, ConnectError):
        if any(word in cause for cause in causes for word in _TLS_ENDS):
            return ConnectFailed(f"{where}: ended the connection where TLS does not end", hint=_TLS_END_HINT)
        if _connecting(causes) and any(word in cause for cause in causes for word in _TLS_WORDS):
            is_plain = any("InvalidContentType" in cause for cause in causes)
            kind = BadCertificate if "certificate" in text else TlsRefused
            return kind(text, hint="what is there does not speak TLS: try http://" if is_plain else "")
        return ConnectFailed(text, was_open=ended_early(error))
    if isinstance(error, BuilderError):
        # The address was checked before: what is missing now is a client, mostly for want of files.
        return ConnectFailed(text)
    return ProtocolBroken(text)


def never_connected(error: Exception) -> bool:
    """Whether there was no connection at all, so that another address may be tried at once."""
    causes = _causes(error)
    return _connecting(causes) and ("tcp connect error" in causes or isinstance(error, RequestTimeoutError))


def ended_early(error: Exception) -> bool:
    """Whether the connection ended before any answer, as one does that was kept and that the server let go."""
    causes = _causes(error)
    return "client error (SendRequest)" in causes and any(word in causes[-1] for word in _ENDS)


def broken_off(error: Exception, *, has_length: bool) -> str:
    """Why a body ended early, as `model.Response.cut` has it."""
    if isinstance(error, RequestTimeoutError):
        return "fetch_seconds"
    is_reset = any("(os error 104)" in cause or "(os error 10054)" in cause for cause in _causes(error))
    return "content_length" if has_length and not is_reset else "disconnect"


def connecting(error: Exception) -> bool:
    """Whether it happened before anything of the request was sent."""
    return _connecting(_causes(error))


def blame(error: Exception, *, is_tls: bool) -> Blame:
    """Who is at fault behind a proxy: the proxy, the host, one of them, or (a connection that hangs) unknown.

    `is_tls` says that the host itself speaks TLS: a handshake that fails outside of a tunnel is then the host's."""
    causes = _causes(error)
    if not _connecting(causes):
        return "host" if is_tls or isinstance(error, RequestTimeoutError) else "either"
    if isinstance(error, RequestTimeoutError):
        return "unknown"
    if any(word in cause for cause in causes for word in _HOST_WORDS):
        return "host"
    if any(word in cause for cause in causes for word in _PROXY_WORDS):
        return "proxy"
    if any(cause.startswith(("tunnel error", "SOCKS error")) for cause in causes):
        return "either"
    # Only a handshake is left. Without TLS of the host's own it was with the proxy.
    return "host" if is_tls else "proxy"


def out_of_files(error: Exception) -> bool:
    """Whether this process may open no more sockets."""
    return any("(os error 24)" in cause for cause in _causes(error))


def _connecting(causes: list[str]) -> bool:
    return "client error (Connect)" in causes


def _causes(error: Exception) -> list[str]:
    if not isinstance(error, DetailedPyreqwestError):
        return []
    return [cause["message"] for cause in error.details["causes"] or ()]
