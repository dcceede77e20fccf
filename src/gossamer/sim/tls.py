"""Certificates of the simulated web, by an authority that is made for one run."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path

from gossamer.errors import ConfigError
from gossamer.sim.site import WebPlan

ADDRESSES_IN_A_CERTIFICATE = 1000
NAMES_IN_A_CERTIFICATE = 50


def server_context(plan: WebPlan, ca_file: Path) -> ssl.SSLContext:
    """The server's side of TLS; the authority that clients must trust is written to `ca_file`.

    Addresses send no name when they connect, so they all stand in one certificate; names get one for each fifty."""
    try:
        import trustme
    except ImportError:
        raise ConfigError("TLS on the simulated web needs trustme", hint="pip install trustme") from None
    # Hosts outside the web have names of their own too, so that a crawler which goes there is seen, not refused.
    hosts = plan.sites + 5
    if not plan.names and hosts > ADDRESSES_IN_A_CERTIFICATE:
        raise ConfigError(f"a certificate for {plan.sites} addresses is too large", hint="use --names")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(ca_file))

    @lru_cache(maxsize=256)
    def context(first: int) -> ssl.SSLContext:
        count = NAMES_IN_A_CERTIFICATE if plan.names else ADDRESSES_IN_A_CERTIFICATE
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*(plan.host(site) for site in range(first, min(first + count, hosts)))).configure_cert(
            made
        )
        return made

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        site = plan.site_of(name) if name else None
        if site is not None and site < hosts:
            connection.context = context(site - site % NAMES_IN_A_CERTIFICATE)

    default = context(0)
    if plan.names:
        default.sni_callback = choose
    return default
