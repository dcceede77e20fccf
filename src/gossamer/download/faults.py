"""What the client library raises, as errors of ours."""

from __future__ import annotations

from pyreqwest.exceptions import BuilderError, ConnectError, DetailedPyreqwestError, RequestTimeoutError

from gossamer.errors import ConnectFailed, FetchError, ProtocolBroken, TimedOut, TlsRefused, TooLarge

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


def translate(error: Exception, where: str) -> FetchError:
    """The FetchError for whatever the client raised while talking to `where`."""
    if isinstance(error, FetchError):
        return error
    causes = _causes(error)
    text = f"{where}: {causes[-1] if causes else str(error) or type(error).__name__}"
    if isinstance(error, RequestTimeoutError):
        return TimedOut(
            f"{where}: no connection in time" if _connecting(causes) else f"{where}: no whole answer in time"
        )
    if causes and "head is too large" in causes[-1]:
        return TooLarge(f"{where}: too many or too long headers")
    if isinstance(error, ConnectError):
        if _connecting(causes) and any(word in cause for cause in causes for word in _TLS_WORDS):
            return TlsRefused(text)
        return ConnectFailed(text)
    if isinstance(error, BuilderError):
        # The address was checked before: what is missing now is a client, mostly for want of files.
        return ConnectFailed(text)
    return ProtocolBroken(text)


def never_connected(error: Exception) -> bool:
    """Whether there was no connection at all, so that another address may be tried at once."""
    causes = _causes(error)
    return _connecting(causes) and ("tcp connect error" in causes or isinstance(error, RequestTimeoutError))


def out_of_files(error: Exception) -> bool:
    """Whether this process may open no more sockets."""
    return any("(os error 24)" in cause for cause in _causes(error))


def _connecting(causes: list[str]) -> bool:
    return "client error (Connect)" in causes


def _causes(error: Exception) -> list[str]:
    if not isinstance(error, DetailedPyreqwestError):
        return []
    return [cause["message"] for cause in error.details["causes"] or ()]
