"""Every error that Gossamer raises, in one tree.

GossamerError
  ConfigError          invalid setting, unknown backend, or missing extra; the command line exits with 2
    UnknownSetting     a keyword argument of crawl() that is not a setting (also a TypeError)
  FetchError           a page could not be fetched
    TransientError     retried
      TimedOut         a stage, or the whole fetch, exceeded its time limit
      ConnectFailed    connection refused, reset, or unreachable
      NameUnresolved   DNS lookup failed temporarily
      ProtocolBroken   the response was truncated or was not valid HTTP
      OutOfMemory      this machine ran out of memory while reading the response
      ProxyFailed      the proxy failed; does not count against the site or the page
      RenderFailed     the browser crashed on the page or did not finish it
    FinalError         not retried
      NameUnknown      the host name does not exist (NXDOMAIN)
      TlsRefused       TLS certificate or handshake failure
        BadCertificate the server's certificate is invalid
      TooLarge         body, decoded body, or headers exceed their limit
      BadEncoding      the body does not decode by its Content-Encoding
      Forbidden        the address guard refused to connect
      Disallowed       robots.txt disallows the URL
      TooManyRedirects a chain of more than ten redirects, or a loop
      MiddlewareFailed your own middleware raised; the original error is the cause
  ExtractError         the spider raised; the original error is the cause
    TooCostly          parsing the page, or its handler, exceeded a limit of time or items
  FrontierError        the frontier cannot be used
    Unavailable        temporarily; retried with back-off
      Leaving          the shard is being moved; a retry puts the links into an outbox
    SchemaMismatch     written by another version of Gossamer, or by another program
    Held               another process owns the frontier
    JobMissing         the job does not exist
    OwnerGone          the process that owns the job has ended
    JobStopped         the operation needs a running job, and this one is stopped or finished
    JobRunning         the operation needs a stopped job, and this one has live workers
  SinkError            output could not be stored; stops the job to avoid losing data silently
    SinkFull           out of disk space, or the server does not respond; the crawl waits
  ArchiveError         stored data cannot be read: missing, truncated, or corrupt
    NotKept            no sink of the job stores the requested data (also a ConfigError)
  SeedsFailed          gossamer.crawl() could not fetch any of its seeds
  WorkersDie           worker processes crash repeatedly
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gossamer.model import FailedPage

UNREACHED = "check that the server is running and that the address is right"
"""Hint for a server that cannot be reached."""


class GossamerError(Exception):
    """Base class of all errors; `hint` names the command or setting that fixes the problem."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(GossamerError):
    """An invalid setting, an unknown backend, or a missing extra."""


class UnknownSetting(ConfigError, TypeError):
    """A keyword argument of `gossamer.crawl()` that is not a setting."""


class FetchError(GossamerError):
    """A page could not be fetched; `kind` is the error's name in records and metrics."""

    kind = "error"


class TransientError(FetchError):
    """A failure that is retried."""

    kind = "transient"


class TimedOut(TransientError):
    """A stage of the fetch, or the whole fetch, exceeded its time limit."""

    kind = "timeout"


class ConnectFailed(TransientError):
    """The connection was refused, reset, or unreachable.

    `was_open`: the connection ended before the response. `was_kept`: it was a kept-alive connection that the server may
    have closed before the request."""

    kind = "connect"

    def __init__(self, message: str, *, hint: str = "", was_open: bool = False, was_kept: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.was_open = was_open
        self.was_kept = was_kept


class NameUnresolved(TransientError):
    """The DNS servers did not respond, or returned SERVFAIL."""

    kind = "dns"


class ProtocolBroken(TransientError):
    """The response was truncated, or was not valid HTTP."""

    kind = "protocol"


class OutOfMemory(TransientError):
    """This machine ran out of memory while reading the response."""

    kind = "memory"


class ProxyFailed(TransientError):
    """The proxy cannot be reached or rejects the credentials; it is used again after `wait_seconds`."""

    kind = "proxy"

    def __init__(self, message: str, *, hint: str = "", wait_seconds: float = 10.0) -> None:
        super().__init__(message, hint=hint)
        self.wait_seconds = wait_seconds


class RenderFailed(TransientError):
    """The browser crashed on the page, or the page's scripts did not finish."""

    kind = "render"


class FinalError(FetchError):
    """A failure that is not retried."""

    kind = "final"


class NameUnknown(FinalError):
    """The host name does not exist (NXDOMAIN)."""

    kind = "nxdomain"


class TlsRefused(FinalError):
    """The TLS certificate was not trusted, or the handshake failed."""

    kind = "tls"


class BadCertificate(TlsRefused):
    """The server's certificate is invalid."""


class TooLarge(FinalError):
    """The body, the decoded body, or the headers exceed their limit."""

    kind = "too-large"


class BadEncoding(FinalError):
    """The body does not decode by its Content-Encoding."""

    kind = "encoding"


class Forbidden(FinalError):
    """The address guard refused the address, the scheme, or the port."""

    kind = "forbidden"


class Disallowed(FinalError):
    """robots.txt disallows this URL."""

    kind = "robots"


class TooManyRedirects(FinalError):
    """A chain of more than ten redirects, or a redirect loop."""

    kind = "redirects"


class MiddlewareFailed(FinalError):
    """Your own middleware raised; the original error is in `__cause__`."""

    kind = "middleware"


class ExtractError(GossamerError):
    """The spider raised on a page; the original error is in `__cause__`."""

    kind = "spider"


class TooCostly(ExtractError):
    """Parsing a page, or the spider's handler, exceeded a limit of time or items; not retried."""

    kind = "too-costly"


class FrontierError(GossamerError):
    """The frontier cannot be used."""


class Unavailable(FrontierError):
    """The frontier does not respond at the moment; the operation is retried."""


class Leaving(Unavailable):
    """The shard is being moved to another server. A retry puts links for other shards into its outbox."""


class SchemaMismatch(FrontierError):
    """The frontier was written by another version of Gossamer, or by another program."""


class Held(FrontierError):
    """Another process owns the frontier."""


class JobMissing(FrontierError):
    """The job does not exist."""


class OwnerGone(FrontierError):
    """The process that owns the job has ended."""


class JobStopped(FrontierError):
    """The operation needs a running job, and this one is stopped or finished."""


class JobRunning(FrontierError):
    """The operation needs a stopped job, and this one has live workers."""


class SinkError(GossamerError):
    """Output could not be stored."""


class SinkFull(SinkError):
    """Output cannot be stored at the moment: out of disk space, or the server does not respond."""


class ArchiveError(GossamerError):
    """Stored data cannot be read: it is missing, truncated, or corrupt."""

    def __init__(self, message: str, *, hint: str = "", offset: int = -1) -> None:
        super().__init__(message, hint=hint)
        self.offset = offset
        """Offset of the corrupt record in its file; -1 if the error is not about a record."""


class NotKept(ArchiveError, ConfigError):
    """No sink of the job stores the requested data."""


class SeedsFailed(GossamerError):
    """A crawl in Python could not fetch any of its seeds; `errors` lists them with kind and reason."""

    def __init__(self, message: str, *, hint: str = "", errors: Sequence[FailedPage] = ()) -> None:
        super().__init__(message, hint=hint)
        self.errors = list(errors)
        if hint:
            # Notebooks show the traceback, which has no hint otherwise.
            self.add_note(f"hint: {hint}")


class WorkersDie(GossamerError):
    """Worker processes crash repeatedly."""


_ADVICE = {
    "timeout": "the site responds slowly: raise --fetch-seconds or --connect-seconds, or try later",
    "connect": "the connection failed: check host and port, and this machine's network",
    "dns": "the DNS servers do not respond: check this machine's network, or set --nameservers",
    "nxdomain": "the host name does not exist: check the spelling",
    "protocol": "the server does not send valid HTTP: check scheme and port",
    "memory": "this machine has too little memory: lower --concurrency or --max-body-bytes",
    "tls": "the TLS certificate is not trusted: add its authority with --ca-file, or store pages despite it with "
    "--bad-tls record; if the server requests a client certificate, set --client-cert",
    "proxy": "the proxy failed: check its address and credentials, and that it is running",
    "render": "the browser did not finish the page: raise --fetch-seconds, or use --downloader async",
    "too-large": "the response is too large: raise --max-body-bytes or --max-decoded-bytes, or --max-file-bytes for "
    "requests labeled `file`",
    "forbidden": "the address guard refused it; the error has the reason: --allow-private permits addresses that are "
    "not public",
    "robots": "robots.txt disallows it: use --no-robots only for your own sites",
    "robots-unreachable": "robots.txt could not be fetched, so no page may be: try later; "
    "use --no-robots only for your own sites",
    "redirects": "the page redirects in a loop: --cookies helps with some sites",
    "spider": "the spider raised an exception: debug it with `gossamer shell URL --spider FILE`",
    "too-costly": "the page, or the spider's handler, exceeded a limit that the error names: raise --parse-seconds, "
    "--handler-seconds, or --handler-items",
    "http-401": "the site requires a login: --header 'Authorization=...' or --header 'Cookie=...'",
    "http-403": "the site refuses this crawler: put a contact into --user-agent, or ask the owner of the site",
    "http-429": "the site limits the request rate: raise --delay",
    "http-503": "the site is overloaded or limits the request rate: raise --delay",
}


def advice_for_kind(kind: str) -> str:
    """Advice for a kind of failure; empty if there is none."""
    return _ADVICE.get(kind, "")


def advice_for_error(error: FetchError) -> str:
    """The error's own hint, or the advice for its kind."""
    return error.hint or advice_for_kind(error.kind)
