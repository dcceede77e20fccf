"""Spiders: the classes that say what to take from pages and where to go on, and how they are found by name."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from gossamer.errors import ConfigError, ExtractError
from gossamer.extract.page import Page
from gossamer.extract.selectors import check
from gossamer.model import Request
from gossamer.settings import Settings

Yielded = Iterable[Any] | AsyncIterable[Any] | Awaitable[Any] | None
Handler = Callable[[Page], Yielded]


class Spider:
    """What to do with each page. As it stands it takes nothing and follows every link in scope.

    `parse` handles a page; a request with `label="product"` goes to `parse_product`. A handler is a generator of items
    and requests, plain or async, or returns a list or None. It does no I/O, so that it can be run over stored pages.

    `open` and `close`, and those of pipelines that have them, are called once in each process that runs the spider."""

    name: ClassVar[str] = ""
    start: ClassVar[Sequence[str]] = ()
    """The URLs to begin with, where the command line names none."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of the job that the spider needs, such as `delay`; what the user says goes first."""
    follows_links: ClassVar[bool] = True
    """Whether the engine follows each page's links by itself; false with an own `parse`, unless the class says it."""
    item_types: ClassVar[type | Sequence[type]] = ()
    """Types that items must fit: dataclasses, attrs classes, pydantic models or msgspec Structs."""
    pipelines: ClassVar[Sequence[Callable[[Any], Any]]] = ()
    """Functions that each item goes through in turn, before it is held against its type; None drops it.

    An object with `__call__` may have `open` and `close`, which are called like those of the spider."""
    fetch_middleware: Sequence[Any] = ()
    parse_middleware: Sequence[Any] = ()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "parse" in cls.__dict__ and "follows_links" not in cls.__dict__:
            cls.follows_links = False
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def open(self) -> Awaitable[None] | None:
        """Called before everything else, in each process that runs the spider; may be `async`.

        What it raises ends the run. It runs in the thread and the event loop of the handlers."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Called once nothing more comes, before the process exits, also after a signal; may be `async`.

        By then all pages are stored. What it raises makes the command fail."""
        return None

    def parse(self, page: Page) -> Yielded:
        """Handle a page that has no label."""
        return None

    def parse_file(self, page: Page) -> Yielded:
        """Handle a file that `page.file` asked for: an item that says which it is. Its body goes to the sinks."""
        kind = page.header("content-type").partition(";")[0].strip().lower()
        digest = hashlib.sha256(page.body).hexdigest()
        return [{"url": page.url, "type": kind, "bytes": len(page.body), "sha256": digest, **page.meta}]

    def score(self, request: Request) -> int:
        """The priority of a link that has none of its own, from -1000 to 1000; larger is sooner. Not called as it is.

        It sees the request as it is queued, with its depth, and may be called for every link: it should be quick."""
        return 0

    def handler(self, label: str) -> Handler:
        """The method for a request's label; an ExtractError names the spider and the label if there is none."""
        if not label:
            return self.parse
        found: Handler | None = getattr(self, f"parse_{label}", None)
        if not callable(found) or label == "middleware":
            raise ExtractError(
                f"spider {type(self).__name__} has no handler for label {label!r}",
                hint=f"add a method parse_{label}(self, page), or drop the label",
            )
        return found


class FieldSpider(Spider):
    """A spider made of `--extract` options: one item per page with the fields that were found there, and its URL."""

    follows_links: ClassVar[bool] = True

    def __init__(self, fields: Mapping[str, str]) -> None:
        for name, selector in fields.items():
            try:
                check(selector)
            except ExtractError as error:
                raise ConfigError(f"extract {name}: {error}", hint="as in NAME='h1::text' or 'a::attr(href)'") from None
        self._fields = dict(fields)

    def parse(self, page: Page) -> list[dict[str, Any]]:
        """The item of this page; none where no field was found."""
        item: dict[str, Any] = {}
        for name, selector in self._fields.items():
            values = page.css(selector).getall()
            if values:
                item[name] = values[0] if len(values) == 1 else values
        return [{"url": page.url, **item}] if item else []


def load(reference: str) -> type[Spider]:
    """The class that `file.py`, `file.py:Class` or `module:Class` names; a ConfigError says what is wrong."""
    place, wanted = _parted(reference)
    module = _module(place, reference)
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Spider) and value.__module__ == module.__name__
    }
    if wanted:
        named = getattr(module, wanted, None)
        if isinstance(named, type) and issubclass(named, Spider):
            return named
        what = "is not a subclass of gossamer.Spider" if named is not None else "is not there"
        raise ConfigError(f"{place}: {wanted} {what}", hint=_choices(found))
    if not found:
        raise ConfigError(f"{place} has no Spider", hint="define a class that inherits from gossamer.Spider")
    if len(found) > 1:
        raise ConfigError(f"{place} has {len(found)} spiders", hint=f"name one: {place}:{next(iter(found))}")
    return next(iter(found.values()))


def make(reference: str) -> Spider:
    """A spider of the class that is named; a ConfigError if it does not come into being."""
    kind = load(reference)
    try:
        return kind()
    except Exception as error:  # it is the user's code, and told as what a file raises is
        said = f"{reference}: {kind.__name__}() raised {type(error).__name__}: {error}"
        hint = "it is made without arguments" if isinstance(error, TypeError) else "fix the file"
        raise ConfigError(said, hint=hint) from error


def load_type(reference: str) -> type:
    """The class that `file.py:Class` or `module:Class` names, whatever it is a class of."""
    place, wanted = _parted(reference)
    if not wanted:
        raise ConfigError(f"{reference}: which class of it?", hint=f"as in {place}:Product")
    found = getattr(_module(place, reference), wanted, None)
    if not isinstance(found, type):
        raise ConfigError(f"{place}: {wanted} {'is not a class' if found is not None else 'is not there'}")
    return found


def _parted(reference: str) -> tuple[str, str]:
    place, colon, wanted = reference.rpartition(":")
    if not colon or wanted.endswith(".py") or "/" in wanted or "\\" in wanted:
        return reference, ""
    return place, wanted


def _module(place: str, reference: str) -> ModuleType:
    return _from_file(Path(place)) if place.endswith(".py") else _from_module(place, reference)


def _choices(found: Mapping[str, type[Spider]]) -> str:
    return f"it has {', '.join(found)}" if found else "it defines no Spider; inherit from gossamer.Spider"


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file", hint="give the path of a Python file")
    # Two files of the same name in two folders are two modules, and a file named json.py hides nothing.
    tag = hashlib.sha1(str(path.resolve()).encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()[:8]
    name = f"gossamer_spider_{path.stem}_{tag}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling by name look their module up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise _unreadable(error, str(path)) from None
    except (Exception, SystemExit) as error:  # whatever a user's file raises is told in one line that names the place
        hint = f"is {error.name} installed here?" if isinstance(error, ModuleNotFoundError) else "fix the file"
        where = f"{path}{_line(error, spec.origin or str(path))}"
        raise ConfigError(f"{where}: {type(error).__name__}: {error}", hint=hint) from error
    return module


def _unreadable(error: SyntaxError, place: str) -> ConfigError:
    line = f", line {error.lineno}" if error.lineno else ""
    return ConfigError(f"{error.filename or place}{line}: {error.msg}", hint="fix the file")


def _from_module(name: str, reference: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{reference}: no module named {error.name}", hint="a file is named with its ending: spider.py"
            ) from None
        raise ConfigError(f"{reference}: it needs {error.name}, which is not installed") from error
    except SyntaxError as error:
        raise _unreadable(error, name) from None
    except (Exception, SystemExit) as error:  # as for a file; a name that is none is a TypeError or a ValueError
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{reference}: {said}", hint="as in FILE.py, FILE.py:Class or module:Class") from error


def _line(error: BaseException, filename: str) -> str:
    """Where in the file it went wrong."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""


def spider_seeds(settings: Settings) -> list[str]:
    """The seeds that the spider names itself."""
    start = load(settings.spider).start
    if isinstance(start, str):
        raise ConfigError(f"{settings.spider}: start is text, but must be a list", hint=f"start = [{start!r:.80}]")
    return list(start)


def spider_settings(settings: Settings) -> dict[str, Any]:
    """The settings that the spider names itself; what the user says goes first."""
    return dict(load(settings.spider).settings)
