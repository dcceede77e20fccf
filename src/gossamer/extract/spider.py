"""Spiders: the classes that extract items and follow links, and how to load them by name."""

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
from gossamer.settings import Settings, expand

Yielded = Iterable[Any] | AsyncIterable[Any] | Awaitable[Any] | Request | None
Handler = Callable[[Page], Yielded]


class Spider:
    """Handles pages. Without overrides, it extracts nothing and follows every link in scope.

    `parse` handles a page; a request with `label="product"` goes to `parse_product`. A handler is a generator of items
    and requests, sync or async, or returns a list, one item or request, or None. It does no I/O, so that it can be
    replayed on stored pages.

    `open` and `close`, also those of pipelines, are called once in each process that runs the spider."""

    name: ClassVar[str] = ""
    start: ClassVar[Sequence[str]] = ()
    """The start URLs, used if the command line names none. `start_urls`, Scrapy's name, is an alias."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of the job that the spider needs, such as `delay`; the user's settings win."""
    follows_links: ClassVar[bool] = True
    """Whether the engine follows each page's links; default true, but false if the class defines `parse`."""
    item_types: ClassVar[type | Sequence[type]] = ()
    """Types that items are validated against: dataclasses, attrs classes, pydantic models, or msgspec Structs."""
    pipelines: ClassVar[Sequence[Callable[[Any], Any]]] = ()
    """Functions that each item passes through in order, before validation; returning None drops the item.
    An object with `__call__` may have `open` and `close`, which are called like those of the spider."""
    fetch_middleware: Sequence[Any] = ()
    parse_middleware: Sequence[Any] = ()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "parse" in cls.__dict__ and "follows_links" not in cls.__dict__:
            cls.follows_links = False
        if "start_urls" in cls.__dict__ and "start" not in cls.__dict__:
            cls.start = cls.__dict__["start_urls"]
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def __init__(self, **arguments: str) -> None:
        """Receives the arguments of `-a NAME=VALUE`, and stores each as an attribute, as in `self.category`."""
        for name in arguments:
            if hasattr(Spider, name):
                raise TypeError(f"argument {name!r} would replace an attribute of Spider")
        vars(self).update(arguments)

    def open(self) -> Awaitable[None] | None:
        """Called first in each process that runs the spider; may be `async`.

        An exception ends the run. Runs in the thread and the event loop of the handlers."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Called after the last page, before the process exits, also after a signal; may be `async`.

        All pages are stored by then. An exception makes the command fail."""
        return None

    def parse(self, page: Page) -> Yielded:
        """Handle a page without a label."""
        return None

    def parse_file(self, page: Page) -> Yielded:
        """Handle a file that `page.file` requested: yield an item that describes it. The sinks store its body."""
        kind = page.header("content-type").partition(";")[0].strip().lower()
        digest = hashlib.sha256(page.body).hexdigest()
        return [{"url": page.url, "type": kind, "bytes": len(page.body), "sha256": digest, **page.meta}]

    def score(self, request: Request) -> int:
        """Return the priority of a link without one, from -1000 to 1000; larger is sooner. Only called if overridden.

        Receives the request as it is queued, with its depth. May be called for every link, so it must be fast."""
        return 0

    def handler(self, label: str) -> Handler:
        """Return the method for a request's label; ExtractError names the spider and the label if there is none."""
        if not label:
            return self.parse
        found: Handler | None = getattr(self, f"parse_{label}", None)
        if not callable(found) or label == "middleware":
            raise ExtractError(
                f"spider {type(self).__name__} has no handler for label {label!r}",
                hint=f"add a method parse_{label}(self, page), or remove the label",
            )
        return found


class FieldSpider(Spider):
    """A spider from `--extract` options: one item per page with its URL and the fields found on it."""

    follows_links: ClassVar[bool] = True

    def __init__(self, fields: Mapping[str, str]) -> None:
        for name, selector in fields.items():
            try:
                check(selector)
            except ExtractError as error:
                raise ConfigError(
                    f"extract {name}: {error}", hint="for example NAME='h1::text' or 'a::attr(href)'"
                ) from None
        self._fields = dict(fields)

    def parse(self, page: Page) -> list[dict[str, Any]]:
        """Return the item of this page; none if no field was found."""
        item: dict[str, Any] = {}
        for name, selector in self._fields.items():
            values = page.css(selector).getall()
            if values:
                item[name] = values[0] if len(values) == 1 else values
        return [{"url": page.url, **item}] if item else []


def load(reference: str) -> type[Spider]:
    """Load the class named by `file.py`, `file.py:Class`, or `module:Class`; ConfigError explains a failure."""
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
        what = "is not a subclass of gossamer.Spider" if named is not None else "does not exist"
        raise ConfigError(f"{place}: {wanted} {what}", hint=_choices(found))
    if not found:
        raise ConfigError(f"{place} defines no spider", hint=_base_hint(module))
    if len(found) > 1:
        raise ConfigError(f"{place} has {len(found)} spiders", hint=f"name one: {place}:{next(iter(found))}")
    return next(iter(found.values()))


def make(reference: str, arguments: Mapping[str, str]) -> Spider:
    """Create a spider of the named class with these arguments; ConfigError if its constructor raises."""
    kind = load(reference)
    values = {name: expand(value, source=f"spider argument {name}") for name, value in arguments.items()}
    try:
        return kind(**values)
    except Exception as error:  # the user's code may raise anything
        message = f"{reference}: {kind.__name__}() raised {type(error).__name__}: {error}"
        named = f"the arguments {', '.join(arguments)}" if arguments else "no arguments; give some with -a NAME=VALUE"
        hint = f"the constructor receives {named}" if isinstance(error, TypeError) else "fix the file"
        raise ConfigError(message, hint=hint) from error


def load_type(reference: str) -> type:
    """Load the class named by `file.py:Class` or `module:Class`, of any base class."""
    place, wanted = _parted(reference)
    if not wanted:
        raise ConfigError(f"{reference}: class name missing", hint=f"for example {place}:Product")
    found = getattr(_module(place, reference), wanted, None)
    if not isinstance(found, type):
        raise ConfigError(f"{place}: {wanted} {'is not a class' if found is not None else 'does not exist'}")
    return found


def _parted(reference: str) -> tuple[str, str]:
    place, colon, wanted = reference.rpartition(":")
    if not colon or wanted.endswith(".py") or "/" in wanted or "\\" in wanted:
        return reference, ""
    return place, wanted


def _module(place: str, reference: str) -> ModuleType:
    return _from_file(Path(place)) if place.endswith(".py") else _from_module(place, reference)


def _base_hint(module: ModuleType) -> str:
    """Return the change that makes a class of this module a spider."""
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == module.__name__:
            if any(base.__module__.partition(".")[0] == "scrapy" for base in value.__mro__):
                return f"{name} is a Scrapy spider: see docs/howto/migrate-from-scrapy.md"
            if hasattr(value, "parse") or hasattr(value, "start") or hasattr(value, "start_urls"):
                return f"add the base class: `from gossamer import Spider`, and `class {name}(Spider):`"
    return "define a class that inherits from gossamer.Spider; `gossamer init` writes an example"


def _choices(found: Mapping[str, type[Spider]]) -> str:
    return f"it has {', '.join(found)}" if found else "it defines no Spider; inherit from gossamer.Spider"


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file", hint="give the path of a Python file")
    # Distinct module names: two files of the same name are two modules, and a file named json.py shadows nothing.
    tag = hashlib.sha1(str(path.resolve()).encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()[:8]
    name = f"gossamer_spider_{path.stem}_{tag}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"cannot load {path} as a Python module")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look up the module by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise _unreadable(error, str(path)) from None
    except (Exception, SystemExit) as error:  # the user's file may raise anything; report it with its line
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
                f"{reference}: no module named {error.name}", hint="name a file with its suffix: spider.py"
            ) from None
        raise ConfigError(f"{reference}: {error.name} is not installed") from error
    except SyntaxError as error:
        raise _unreadable(error, name) from None
    except (Exception, SystemExit) as error:  # as for a file; an invalid name is a TypeError or a ValueError
        message = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{reference}: {message}", hint="use FILE.py, FILE.py:Class or module:Class") from error


def _line(error: BaseException, filename: str) -> str:
    """Return the line of the file that raised."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""


def spider_seeds(settings: Settings) -> list[str]:
    """Return the start URLs of the spider; its constructor may set them."""
    start: Any = load(settings.spider).start
    if settings.spider_args or not start or not isinstance(start, Sequence):
        spider = make(settings.spider, settings.spider_args)
        start = vars(spider).get("start_urls", spider.start)
    if isinstance(start, str):
        raise ConfigError(f"{settings.spider}: start must be a list, not a string", hint=f"start = [{start!r:.80}]")
    return list(start)


def spider_settings(settings: Settings) -> dict[str, Any]:
    """Return the spider's own settings; the user's settings win."""
    return dict(load(settings.spider).settings)
