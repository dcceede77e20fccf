"""Forms: the request that a browser would send on submit, and request bodies that may contain secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from secrets import token_hex
from typing import Any, NamedTuple
from urllib.parse import quote_plus

from turbohtml import Document, Element, SelectorSyntaxError

from gossamer.errors import ExtractError
from gossamer.extract.encoding import NAMES, encode
from gossamer.model import SECRET, Secret

Value = str | Secret
Fields = list[tuple[str, Value]]
FieldValues = Mapping[str, str | Sequence[str] | None]
URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
_BUTTONS = ("submit", "image")
_CONTROLS = "input, select, textarea, button"
_DISABLED = ", ".join(f"fieldset[disabled] {name}" for name in _CONTROLS.split(", "))
_NEVER_SENT = ("reset", "button", "file", *_BUTTONS)


class Submission(NamedTuple):
    """A filled-in form: its target, method, and fields."""

    action: str
    method: str
    enctype: str
    charset: str
    fields: Fields


def fill_form(
    tree: Document, query: str, given: FieldValues, *, click: str | None = None, encoding: str = "utf-8"
) -> Submission:
    """Fill in the form that a CSS selector finds with its own values and the given ones; None removes a field.

    Without a selector it is the first form with a password field, else the first form. The first submit button is
    included, or the one whose name or id is `click`; with an empty `click`, none."""
    form = _find(tree, query)
    controls = list(_controls(tree, form))
    button = _button(controls, click)
    fields: Fields = []
    met: set[str] = set()
    for node in controls:
        name = _get(node, "name")
        is_clicked = node is button
        if not name or (_is_button(node) and not is_clicked):
            continue
        if name not in given:
            fields += [(name, value) for value in _values(node, is_clicked=is_clicked)]
        elif name not in met:
            met.add(name)
            fields += _field_values(name, given[name])
    fields += [pair for name, value in given.items() if name not in met for pair in _field_values(name, value)]
    attributes = {name: _get(form, name) for name in ("action", "method", "enctype")}
    if button is not None:
        attributes.update({name: own for name in attributes if (own := _get(button, f"form{name}"))})
    charset = _get(form, "accept-charset").replace(",", " ").split()
    known = [NAMES[name.lower()] for name in charset if name.lower() in NAMES]
    method = attributes["method"].strip().upper()
    return Submission(
        attributes["action"],
        "POST" if method == "POST" else "GET",
        attributes["enctype"].strip().lower() or URLENCODED,
        known[0] if known else encoding,
        fields,
    )


def urlencoded(fields: Fields, charset: str = "utf-8") -> str:
    """Encode fields as a query or a body. Text of the page cannot pass for a secret: its markers are escaped."""
    return "&".join(
        f"{_quoted(name, charset)}={value if isinstance(value, Secret) else _quoted(value, charset)}"
        for name, value in fields
    )


def multipart(fields: Fields, charset: str = "utf-8") -> tuple[str, bytes]:
    """Encode fields as multipart/form-data; return the content type and the body."""
    parts = []
    for name, value in fields:
        if not isinstance(value, Secret) and SECRET.search(value):
            raise ExtractError(
                f"the value of {name!r} looks like a secret", hint="create secrets with gossamer.secret()"
            )
        shown = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
        parts.append(f'Content-Disposition: form-data; name="{shown}"\r\n\r\n{_lines(value)}\r\n')
    whole = encode("\0".join(parts), charset, _reference)
    # A deterministic boundary: equal fields give an equal body, so a request stays the same after a crash.
    boundary = "gossamer-" + blake2b(whole, digest_size=16).hexdigest()
    mark = b"--" + boundary.encode()
    body = b"".join(mark + b"\r\n" + part for part in whole.split(b"\0")) + mark + b"--\r\n"
    return f"{MULTIPART}; boundary={boundary}", body


def json_body(value: Any) -> bytes:
    """Encode a value as JSON in which only `secret()` names secrets: elsewhere their marker is escaped."""
    names: list[str] = []
    # Random, so that no page can guess it.
    mark = token_hex(16)

    def marked(value: Any) -> Any:
        if isinstance(value, Secret):
            names.append(str(value))
            return f"{mark}.{len(names) - 1}."
        if isinstance(value, str):
            return str(value)
        if isinstance(value, Mapping):
            return {str(key): marked(item) for key, item in value.items()}
        return [marked(item) for item in value] if isinstance(value, list | tuple) else value

    try:
        text = json.dumps(marked(value), separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ExtractError(f"cannot encode as JSON: {error}") from error
    text = text.replace("$", "\\u0024")
    for number, name in enumerate(names):
        text = text.replace(f"{mark}.{number}.", name)
    return text.encode()


def _find(tree: Document, query: str) -> Element:
    try:
        found = tree.select(query or "form")
    except SelectorSyntaxError as error:
        raise ExtractError(f"invalid CSS selector {query!r} for the form") from error
    if not query:
        found = [form for form in found if form.select_one('input[type="password" i]') is not None] or found
    if not found:
        raise ExtractError(f"the page has no form {query!r}" if query else "the page has no form")
    form = found[0].closest("form")
    if form is None:
        raise ExtractError(f"the element found by {query!r} is not a form or inside one")
    return form


def _controls(tree: Document, form: Element) -> Iterator[Element]:
    """Yield the form's controls in document order, without disabled ones."""
    own = _get(form, "id")
    disabled = set(tree.select(_DISABLED))
    for node in tree.select(_CONTROLS):
        owner = _get(node, "form")
        belongs = owner == own if owner and own else not owner and node.closest("form") is form
        if belongs and node.attr("disabled") is None and node not in disabled:
            yield node


def _is_button(node: Element) -> bool:
    kind = _get(node, "type").lower()
    return kind in _BUTTONS if node.tag == "input" else node.tag == "button" and kind in ("", "submit")


def _button(controls: list[Element], click: str | None) -> Element | None:
    buttons = [node for node in controls if _is_button(node)]
    if click is None:
        return buttons[0] if buttons else None
    if not click:
        return None
    for node in buttons:
        if click in (_get(node, "name"), _get(node, "id")):
            return node
    raise ExtractError(f"the form has no button {click!r}")


def _values(node: Element, *, is_clicked: bool) -> list[str]:
    """Return the values that the control submits in its current state."""
    kind = _get(node, "type").lower()
    if node.tag == "textarea":
        return [node.text]
    if node.tag == "select":
        options = [option for option in node.select("option") if option.attr("disabled") is None]
        chosen = [option for option in options if option.attr("selected") is not None]
        if node.attr("multiple") is None:
            chosen = chosen[-1:] or options[:1]
        return [_option(option) for option in chosen]
    if is_clicked:
        return [_get(node, "value")]
    if node.tag == "button" or kind in _NEVER_SENT:
        return []
    if kind in ("checkbox", "radio"):
        checked = node.attr("checked") is not None
        return [_get(node, "value") if node.attr("value") is not None else "on"] if checked else []
    return [_get(node, "value")]


def _option(node: Element) -> str:
    return _get(node, "value") if node.attr("value") is not None else " ".join(node.text.split())


def _field_values(name: str, value: str | Sequence[str] | None) -> Fields:
    if value is None:
        return []
    values = (value,) if isinstance(value, str) else value
    return [(name, item if isinstance(item, Secret) else str(item)) for item in values]


def _quoted(text: str, charset: str) -> str:
    return quote_plus(encode(_lines(text), charset, _reference), safe="*-._")


def _reference(letter: str) -> bytes:
    return b"&#%d;" % ord(letter)


def _lines(text: str) -> str:
    """Normalize line ends to CRLF, as forms do."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n")


def _get(node: Element, name: str) -> str:
    return node.attr(name) or ""
