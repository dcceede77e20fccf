"""Spellings: the many ways in which pages write a link to one and the same URL."""

from __future__ import annotations

import ipaddress
from html import escape
from urllib.parse import unquote

from gossamer import urls


def relative(base: str, url: str) -> str:
    """`url` as a path relative to the directory of `base`; both normal URLs of one origin."""
    here = urls.path_query(base).partition("?")[0].split("/")[1:-1]
    path, mark, query = urls.path_query(url).partition("?")
    there = path.split("/")[1:]
    shared = 0
    while shared < min(len(here), len(there) - 1) and here[shared] == there[shared]:
        shared += 1
    steps = "../" * (len(here) - shared) + "/".join(there[shared:])
    # A first segment with a colon would read as a scheme, an empty reference as the page itself.
    return (steps if steps and ":" not in steps.split("/")[0] else f"./{steps}") + mark + query


def anchors(base: str, url: str, text: str) -> list[str]:
    """HTML links that a browser at `base` takes to `url`, one for each way of writing it."""
    scheme = url.partition(":")[0]
    path = urls.path_query(url)
    authority = urls.host_port(url)
    near = relative(base, url)
    bare, mark, query = path.partition("?")
    references = [
        path,
        near,
        near if near.startswith(".") else f"./{near}",
        url,
        f"//{authority}{path}",
        f"{scheme.upper()}://{authority.upper()}{path}",
        f"{scheme}://{_padded_port(url)}{path}",
        f"{scheme}://{_other_host(authority)}{path}",
        f"{scheme}:{path}",
        f"{scheme}:////{authority}{path}",
        f"{path}#top",
        f"{url}#",
        f"/nowhere/..{path}",
        f"/./a/b/%2E%2e/%2e./.{path}",
        f"{bare.replace('/', chr(92))}{mark}{query}",
        f" \n\t{path}\r\n ",
        f"{path[:3]}\n{path[3:5]}\t{path[5:]}",
        unquote(bare) + mark + query,
    ]
    written = [f'<a href="{_attribute(reference)}">{text}</a>' for reference in references]
    return [
        *written,
        f'<a href="{"".join(f"&#{ord(mark)};" for mark in path)}">{text}</a>',
        f'<a href="{"".join(f"&#x{ord(mark):X};" for mark in path)}">{text}</a>',
        f"<A class=link HREF='{_attribute(path)}'>{text}</A>",
        f"<a title='>' href = {_attribute(url)} >{text}</a>",
        f'<map><area shape="default" alt="{text}" href="{_attribute(near)}"></map>',
    ]


def junk(page: int) -> str:
    """Things in href that are no links to pages at all."""
    return (
        '<a href="">here</a> <a href="#">top</a> <a>no href</a> <a href="javascript:void(0)">script</a> '
        '<a href="mailto:editor@paper.invalid">mail</a> <a href="tel:+4912345">call</a> '
        f'<a href="data:text/html,hello">data</a> <a href="ftp://files.invalid/{page}">files</a> '
        '<a href="http://[::1">broken</a> <a href="http://a b/">space</a> '
        '<a href="https://">nothing</a> <a href="http://1.2.3.4.5.6/">address</a>'
    )


def _attribute(reference: str) -> str:
    return escape(reference, quote=True)


def _padded_port(url: str) -> str:
    authority = urls.host_port(url)
    host = urls.host(authority)
    if host == authority:
        return f"{host}:{443 if url.startswith('https:') else 80}"
    return f"{host}:00{authority.rpartition(':')[2]}"


def _other_host(authority: str) -> str:
    """The same host as a plain number, or with a percent-encoded letter."""
    host = urls.host(authority)
    port = authority[len(host) :]
    if urls.is_address(host):
        return f"{int(ipaddress.ip_address(host))}{port}"
    return f"%{ord(host[0]):02x}{host[1:]}{port}"
