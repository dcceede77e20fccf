"""What to do about a failure, by its kind."""

from __future__ import annotations

from gossamer.errors import FetchError
from gossamer.settings import Settings

_BY_KIND = {
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


def for_kind(kind: str) -> str:
    """What may help against a kind of failure; empty where nothing general does."""
    return _BY_KIND.get(kind, "")


def for_error(error: FetchError) -> str:
    """The error's own hint, or one for its kind."""
    return error.hint or for_kind(error.kind)


def introduces_itself(settings: Settings) -> bool:
    """Whether the user agent says whom to write to, and not just what crawls."""
    return settings.user_agent != Settings().user_agent
