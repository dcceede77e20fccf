"""Cost of a robots.txt check, compared with protego if installed."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

from gossamer.engine.robots_txt import Matcher, Robots, parse, unpack

AGENT = "Gossamer/0.1"
PATHS = ["/", "/shop/item-17.html", "/shop/section-3/item?id=9&sort=price", "/private/x", "/a/b/c/d.pdf", "/search?q=x"]


def microseconds(call: Callable[[], object], *, seconds: float = 0.3) -> float:
    """Best mean time of a call over five rounds."""
    rounds = 1
    while True:
        start = time.perf_counter()
        for _ in range(rounds):
            call()
        spent = time.perf_counter() - start
        if spent > seconds / 5:
            break
        rounds *= 2
    best = spent / rounds
    for _ in range(4):
        start = time.perf_counter()
        for _ in range(rounds):
            call()
        best = min(best, (time.perf_counter() - start) / rounds)
    return best * 1e6


def small() -> str:
    """Like most files: a dozen rules, two wildcards."""
    names = ["admin", "private", "cart", "checkout", "search", "login", "tmp", "cgi-bin", "wp-admin", "api"]
    return (
        "User-agent: *\n"
        + "".join(f"Disallow: /{name}/\n" for name in names)
        + "Disallow: /*?sort=\nDisallow: /*.pdf$\n"
    )


def large() -> str:
    """300 rules, a third of them with wildcards."""
    lines = [f"Disallow: /section-{n}/private-{n * 7}/\nAllow: /s{n}*/open\nDisallow: /*?p{n}=\n" for n in range(100)]
    return "User-agent: *\n" + "".join(lines)


def hostile() -> str:
    """As many wildcard rules as the size limit allows."""
    return "User-agent: *\n" + "".join(f"Disallow: /*a*{n:x}\n" for n in range(100_000))


def main() -> None:
    """Print a line for each file."""
    print(f"python {platform.python_version()} on {platform.machine()}; microseconds, best of five rounds")
    try:
        import protego
    except ImportError:
        protego = None  # type: ignore[assignment]
        print("protego is not installed: no comparison")
    for name, text in (("small", small()), ("300 rules", large()), ("hostile", hostile())):
        rules = parse(text.encode(), AGENT)
        matcher = Matcher(rules)
        packed = Robots(kind="rules", rules=rules).pack()
        paths = ["/" + "a" * 2000] if name == "hostile" else PATHS
        check = microseconds(lambda matcher=matcher, paths=paths: [matcher.allowed(path) for path in paths]) / len(  # type: ignore[misc]
            paths
        )
        line = (
            f"{name:10} check {check:9.2f}   parse {microseconds(lambda text=text: parse(text.encode(), AGENT)):9.1f}"  # type: ignore[misc]
        )
        line += f"   unpack + compile {microseconds(lambda packed=packed: Matcher(unpack(packed).rules)):9.1f}"  # type: ignore[misc]
        if protego is not None and name != "hostile":
            theirs = protego.Protego.parse(text)
            urls = ["http://x.org" + path for path in paths]
            other = microseconds(lambda theirs=theirs, urls=urls: [theirs.can_fetch(url, AGENT) for url in urls]) / len(  # type: ignore[misc]
                urls
            )
            line += f"   protego check {other:9.2f} ({other / check:.1f}x)"
        print(line)


if __name__ == "__main__":
    main()
