"""Seeded random numbers, names, titles, and prose for the simulated web."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b, shake_128


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words("""
    amber ancient autumn brave bright calm clear copper crooked curious distant early eastern faded forgotten gentle
    golden green hidden hollow humble lucky marble misty narrow northern open painted patient pale plain quiet rainy
    restless rusty salty secret silver sleepy slow small southern stubborn sunny tall tidal velvet wandering western
    wild winter wooden
""")
NOUNS = _words("""
    acorn anchor archive attic bakery barge beacon bridge canal candle cellar chapel chestnut clock cloud compass
    coast crane ferry field forge fountain garden gate glacier harbour heron hill island kettle kite ladder lake
    lantern library lighthouse loom market meadow mill mirror moon orchard otter owl piano pier plum pond quarry
    railway raven river road sail school station stone swan tower valley well willow window workshop
""")
SECTIONS = {
    "letters": "Letter from the {adjective} {noun}",
    "maps": "A map of the {adjective} {noun}",
    "recipes": "Bread & butter of the {adjective} {noun}",
    "stories": "The {noun} that stayed {adjective}",
    "walks": "A walk to the {adjective} {noun}",
    "weather": "Rain over the {adjective} {noun}",
    "workbench": "Mending the {adjective} {noun}",
}
SECTION_NAMES = tuple(SECTIONS)
PROSE = _words("""
    the a of and to in was it that with for on as at by from they had all were one when there who out more up into
    time only some could then now like over also two after most made before must through where much way well day
    down work year here water hand morning evening people house letter street summer winter light paper bread stone
    glass door table voice story walked opened carried waited answered remembered turned followed found closed began
    asked kept heard wrote left crossed
""")
PARAGRAPH_BYTES = 512


def draw(seed: int, *names: object) -> int:
    """A 64-bit number that depends only on the arguments."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def stream(seed: int, *names: object, count: int) -> memoryview:
    """`count` 32-bit numbers that depend only on the arguments."""
    text = "/".join(map(str, (seed, *names)))
    return memoryview(shake_128(text.encode()).digest(4 * count)).cast("I")


@lru_cache(maxsize=16_384)
def site_title(seed: int, site: int) -> str:
    """The name of a site, such as `The Amber Lighthouse`."""
    number = draw(seed, site, "name")
    adjective, noun = ADJECTIVES[number % len(ADJECTIVES)], NOUNS[(number >> 16) % len(NOUNS)]
    return f"The {adjective.title()} {noun.title()}"


@lru_cache(maxsize=65_536)
def page_words(seed: int, site: int, page: int) -> tuple[str, str, str]:
    """The section, adjective, and noun of a page's topic."""
    number = draw(seed, site, page)
    return (
        SECTION_NAMES[number % len(SECTION_NAMES)],
        ADJECTIVES[(number >> 16) % len(ADJECTIVES)],
        NOUNS[(number >> 32) % len(NOUNS)],
    )


def paragraphs(seed: int, count: int = 1024) -> list[bytes]:
    """Paragraphs of prose of exactly PARAGRAPH_BYTES each, with inline markup as on real pages."""
    numbers = stream(seed, "prose", count=count * 128)
    made = []
    for start in range(0, count * 128, 128):
        picked = [PROSE[number % len(PROSE)] for number in numbers[start : start + 128]]
        picked[7], picked[19] = f"<b>{picked[7]}</b>", f'<span class="w">{picked[19]}</span>'
        made.append(_fitted(" ".join(picked)))
    return made


def _fitted(text: str) -> bytes:
    room = PARAGRAPH_BYTES - len("<p></p>\n")
    return f"<p>{text[: room - 1].rstrip():.<{room}}</p>\n".encode()
