from __future__ import annotations

import pytest
import turbohtml

from gossamer import urls
from gossamer.lab.simweb import pages

TARGETS = [
    "http://127.0.0.9:8000/maps/old-well-3?item=1&lang=en",
    "http://s1.sim/",
    "http://s1.sim:81/th%C3%A9%20vert/caf%C3%A9-3",
    "https://s1.sim/a/b",
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("page", ["/", "/maps/", "/maps/new-pond-1", "/a/b/c?back=/d/"])
def test_every_link_form_resolves_to_the_same_url(target: str, page: str) -> None:
    base = urls.join(target, page)
    assert base
    anchors = pages.anchors(base, target, "text")
    assert len(set(anchors)) > 20
    for anchor in anchors:
        (link,) = turbohtml.parse(f"<body>{anchor}").select("[href]")
        assert urls.join(base, link.attr("href") or "") == target, anchor


def test_junk_links_contain_no_page() -> None:
    base = "http://s1.sim/a"
    for link in turbohtml.parse(pages.junk(3)).select("a[href]"):
        assert urls.join(base, link.attr("href") or "") in (None, base)
