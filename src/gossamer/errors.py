"""Every error that Gossamer raises, in one tree.

GossamerError
  ConfigError          a wrong setting, an unknown backend, a missing extra; the command line exits with 2
  FetchError           a page could not be fetched
    TransientError     worth another try
      TimedOut         a stage, or the whole fetch, took too long
      ConnectFailed    refused, reset, unreachable
      NameUnresolved   DNS did not answer (again later)
      ProtocolBroken   the answer was cut off or was not HTTP
      OutOfMemory      this machine had none left for the answer
      ProxyFailed      the proxy's fault: nothing is charged to the site or the page
      RenderFailed     the browser did not come to an end with the page
    FinalError         another try would end the same
      NameUnknown      DNS says that there is no such name
      TlsRefused       certificate or handshake
        BadCertificate the server could not prove who it is
      TooLarge         body, decoded body or headers over their limit
      BadEncoding      a Content-Encoding that does not decode
      Forbidden        the address guard refused to connect
      Disallowed       robots.txt says no
      TooManyRedirects a chain of more than ten hops, or a loop
      MiddlewareFailed the user's own middleware raised; the original is the cause
  ExtractError         the spider raised; the original is the cause
    TooCostly          parsing the page, or its handler, passed a limit of time or items
  FrontierError        the frontier is not usable
    Unavailable        for now: retried with back-off
      Leaving          a shard may move; whoever tries again puts its links into an outbox
    SchemaMismatch     written by another version, or not ours at all
    Held               another process owns it
    JobMissing         the job that a worker was told to join is not there
    OwnerGone          the process that owns the job has ended
    JobStopped         the job is not in a state for that: nobody works on it, or it has ended
    JobRunning         somebody works on the job, and what was asked needs it at rest
  SinkError            output could not be stored; stops the job, because losing data silently is worse
    SinkFull           no space, or no answer from its server: the crawl waits until there is
  ArchiveError         what was stored cannot be read: it is not there, cut off, or not what it should be
    NotKept            no sink of the job keeps what is asked for (also a ConfigError)
  WorkersDie           worker processes die again and again
"""

from __future__ import annotations

UNREACHED = "is the server up, and is this its address?"
"""The hint where a store cannot be connected to."""


class GossamerError(Exception):
    """What every error of ours is; `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(GossamerError):
    """A wrong setting, an unknown backend or a missing extra."""


class FetchError(GossamerError):
    """A page could not be fetched; `kind` is the word for it in records and counters."""

    kind = "error"


class TransientError(FetchError):
    """A failure that another try may cure."""

    kind = "transient"


class TimedOut(TransientError):
    """A stage of the fetch, or the whole of it, took too long."""

    kind = "timeout"


class ConnectFailed(TransientError):
    """No connection: refused, reset or unreachable.

    It `was_open` if it ended before the answer, and `was_kept` if it may be one that the server had let go before."""

    kind = "connect"

    def __init__(self, message: str, *, hint: str = "", was_open: bool = False, was_kept: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.was_open = was_open
        self.was_kept = was_kept


class NameUnresolved(TransientError):
    """The name servers did not answer, or said SERVFAIL."""

    kind = "dns"


class ProtocolBroken(TransientError):
    """The answer was cut off, or was not HTTP."""

    kind = "protocol"


class OutOfMemory(TransientError):
    """This machine had no memory left for the answer."""

    kind = "memory"


class ProxyFailed(TransientError):
    """The proxy cannot be reached or does not let us in; after `wait_seconds` it may be worth another try."""

    kind = "proxy"

    def __init__(self, message: str, *, hint: str = "", wait_seconds: float = 10.0) -> None:
        super().__init__(message, hint=hint)
        self.wait_seconds = wait_seconds


class RenderFailed(TransientError):
    """The browser crashed on the page, or its scripts did not end."""

    kind = "render"


class FinalError(FetchError):
    """A failure that another try would repeat."""

    kind = "final"


class NameUnknown(FinalError):
    """DNS says that the name does not exist."""

    kind = "nxdomain"


class TlsRefused(FinalError):
    """The certificate or the handshake was not acceptable."""

    kind = "tls"


class BadCertificate(TlsRefused):
    """The server's certificate does not prove who it is."""


class TooLarge(FinalError):
    """The body, the decoded body or the headers passed their limit."""

    kind = "too-large"


class BadEncoding(FinalError):
    """The body does not decode by its own Content-Encoding."""

    kind = "encoding"


class Forbidden(FinalError):
    """The address guard refused the address, the scheme or the port."""

    kind = "forbidden"


class Disallowed(FinalError):
    """robots.txt does not allow this URL."""

    kind = "robots"


class TooManyRedirects(FinalError):
    """A redirect chain of more than ten hops, or one that bites its tail."""

    kind = "redirects"


class MiddlewareFailed(FinalError):
    """Middleware of the user's raised something; the original error is in `__cause__`."""

    kind = "middleware"


class ExtractError(GossamerError):
    """The spider raised on a page; the original error is in `__cause__`."""

    kind = "spider"


class TooCostly(ExtractError):
    """Parsing a page, or the spider's handler, took more time or gave more items than it may; not tried again."""

    kind = "too-costly"


class FrontierError(GossamerError):
    """The frontier cannot be used."""


class Unavailable(FrontierError):
    """The frontier does not answer for now."""


class Leaving(Unavailable):
    """A shard may move to another server: links for others on its present server have to be in its outbox."""


class SchemaMismatch(FrontierError):
    """The frontier was written by another version, or by something else."""


class Held(FrontierError):
    """Another process owns the frontier."""


class JobMissing(FrontierError):
    """There is no such job."""


class OwnerGone(FrontierError):
    """The process that owns the job has ended."""


class JobStopped(FrontierError):
    """The job is not in a state for what was asked: nobody works on it, or it has ended."""


class JobRunning(FrontierError):
    """Somebody works on the job, and what was asked needs it at rest."""


class SinkError(GossamerError):
    """Output could not be stored."""


class SinkFull(SinkError):
    """Output cannot be stored at the moment: there is no space, or its server does not answer."""


class ArchiveError(GossamerError):
    """What was stored cannot be read: it is not there, cut off, or not what it should be."""

    def __init__(self, message: str, *, hint: str = "", offset: int = -1) -> None:
        super().__init__(message, hint=hint)
        self.offset = offset
        """Where in its file the record begins that is broken; -1 if it is something else that is wrong."""


class NotKept(ArchiveError, ConfigError):
    """What is asked for is kept by no sink of the job."""


class WorkersDie(GossamerError):
    """Workers die again and again."""


_ADVICE = {
    "timeout": "the site answers slowly: raise --fetch-seconds or --connect-seconds, or try later",
    "connect": "nothing answers there: check host and port, and whether this machine reaches the network",
    "dns": "the name servers do not answer: check this machine's network",
    "nxdomain": "there is no such host: check the spelling",
    "protocol": "the server does not speak proper HTTP there: check scheme and port",
    "memory": "this machine has too little memory: lower --concurrency or --max-body-bytes",
    "tls": "the certificate is not trusted: name its authority with --ca-file, or --bad-tls record marks such pages; "
    "a server that asks for one of yours needs --client-cert",
    "proxy": "the proxy does not let anything through: check its address, its credentials and that it runs",
    "render": "the browser did not come to an end with the page: raise --fetch-seconds, or use --downloader async",
    "too-large": "raise --max-body-bytes or --max-decoded-bytes; of files that a spider asks for, --max-file-bytes",
    "forbidden": "the address guard refuses it, and the error tells why: --allow-private permits addresses that are "
    "not public",
    "robots": "robots.txt does not allow it: --no-robots is for sites of your own",
    "robots-unreachable": "robots.txt could not be had, so nothing may be fetched: try later; "
    "--no-robots is for sites of your own",
    "redirects": "the page redirects in a circle: some sites want --cookies for it to end",
    "spider": "the spider raised: `gossamer shell URL --spider FILE` shows why",
    "too-costly": "the page, or the spider's handler, took too long: the error names the limit; --parse-seconds, "
    "--handler-seconds and --handler-items raise them",
    "http-401": "the site wants a login: --header 'Authorization=...' or --header 'Cookie=...'",
    "http-403": "the site refuses this crawler: a --user-agent with a contact may help, or ask the owner",
    "http-429": "the site finds this too fast: raise --delay",
    "http-503": "the site is overloaded, or finds this too fast: raise --delay",
}


def advice_for_kind(kind: str) -> str:
    """What may help against a kind of failure; empty where nothing general does."""
    return _ADVICE.get(kind, "")


def advice_for_error(error: FetchError) -> str:
    """The error's own hint, or the advice for its kind."""
    return error.hint or advice_for_kind(error.kind)
