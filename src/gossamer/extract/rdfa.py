"""RDFa 1.1 in HTML: the statements of a page, by the processing sequence of RDFa Core and the rules of HTML+RDFa.

Only elements with relevant attributes are visited; the elements between them pass their context on unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urljoin

from turbohtml import Document, Element, Node

_RDF, _RDFA = "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://www.w3.org/ns/rdfa#"
_XSD, _XHV = "http://www.w3.org/2001/XMLSchema#", "http://www.w3.org/1999/xhtml/vocab#"
_PREFIXES = {
    "as": "https://www.w3.org/ns/activitystreams#",
    "csvw": "http://www.w3.org/ns/csvw#",
    "dcat": "http://www.w3.org/ns/dcat#",
    "dqv": "http://www.w3.org/ns/dqv#",
    "duv": "https://www.w3.org/ns/duv#",
    "grddl": "http://www.w3.org/2003/g/data-view#",
    "jsonld": "http://www.w3.org/ns/json-ld#",
    "ldp": "http://www.w3.org/ns/ldp#",
    "ma": "http://www.w3.org/ns/ma-ont#",
    "oa": "http://www.w3.org/ns/oa#",
    "odrl": "http://www.w3.org/ns/odrl/2/",
    "org": "http://www.w3.org/ns/org#",
    "owl": "http://www.w3.org/2002/07/owl#",
    "prov": "http://www.w3.org/ns/prov#",
    "qb": "http://purl.org/linked-data/cube#",
    "rdf": _RDF,
    "rdfa": _RDFA,
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "rif": "http://www.w3.org/2007/rif#",
    "rr": "http://www.w3.org/ns/r2rml#",
    "sd": "http://www.w3.org/ns/sparql-service-description#",
    "skos": "http://www.w3.org/2004/02/skos/core#",
    "skosxl": "http://www.w3.org/2008/05/skos-xl#",
    "sosa": "http://www.w3.org/ns/sosa/",
    "ssn": "http://www.w3.org/ns/ssn/",
    "time": "http://www.w3.org/2006/time#",
    "void": "http://rdfs.org/ns/void#",
    "wdr": "http://www.w3.org/2007/05/powder#",
    "wdrs": "http://www.w3.org/2007/05/powder-s#",
    "xhv": _XHV,
    "xml": "http://www.w3.org/XML/1998/namespace",
    "xsd": _XSD,
    "cc": "http://creativecommons.org/ns#",
    "ctag": "http://commontag.org/ns#",
    "dc": "http://purl.org/dc/terms/",
    "dcterms": "http://purl.org/dc/terms/",
    "dc11": "http://purl.org/dc/elements/1.1/",
    "foaf": "http://xmlns.com/foaf/0.1/",
    "gr": "http://purl.org/goodrelations/v1#",
    "ical": "http://www.w3.org/2002/12/cal/icaltzd#",
    "og": "http://ogp.me/ns#",
    "rev": "http://purl.org/stuff/rev#",
    "schema": "http://schema.org/",
    "sioc": "http://rdfs.org/sioc/ns#",
    "v": "http://rdf.data-vocabulary.org/#",
    "vcard": "http://www.w3.org/2006/vcard/ns#",
    **{name: f"http://ogp.me/ns/{name}#" for name in ("article", "book", "fb", "music", "profile", "video", "website")},
    "twitter": "https://dev.twitter.com/cards#",
}
"""The initial context of RDFa 1.1, and prefixes that pages use undeclared: Open Graph and Twitter cards."""
_TERMS = {"describedby": f"{_PREFIXES['wdrs']}describedby", "license": f"{_XHV}license", "role": f"{_XHV}role"}
_STARTS = "[property], [typeof], [about], [resource], [vocab], [prefix], [rel], [rev]"
_ABSOLUTE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_PREFIX = re.compile(r"(\S*?):\s+(\S+)")
_TERM = re.compile(r"[^\W\d][\w/.-]*")
_DATES = (
    (re.compile(r"-?P(?:\d|T\d).*"), "duration"),
    (re.compile(r"-?\d{4,}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"), "dateTime"),
    (re.compile(r"-?\d{4,}-\d\d-\d\d(?:Z|[+-]\d\d:?\d\d)?"), "date"),
    (re.compile(r"\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"), "time"),
    (re.compile(r"-?\d{4,}-\d\d"), "gYearMonth"),
    (re.compile(r"-?\d{4,}"), "gYear"),
)
_MOST_ELEMENTS, _MOST_STATEMENTS, _MOST_TEXT, _LONGEST, _MOST_PREFIXES = 50_000, 50_000, 8 * 1024 * 1024, 100_000, 256

Value = dict[str, Any]
Lists = dict[str, list[Value]]


def rdfa(tree: Document, base: str) -> list[dict[str, Any]]:
    """Return the subjects of the page's statements as expanded JSON-LD: `@id`, `@type`, and a list for each property.

    Values are `{"@value": ...}` with `@language` or `@type`, `{"@id": ...}`, or `{"@list": [...]}`; blank nodes are
    called `_:b0` and so on."""
    root = tree.root
    has_vocabulary = tree.select_one("[vocab]") is not None
    starts = [node for node in tree.select(_STARTS) if _is_statement(node, has_vocabulary=has_vocabulary)]
    if root is None or not starts:
        return []
    return _Reader(base.partition("#")[0]).read(root, _relevant_elements(tree, root, starts))


def _relevant_elements(tree: Document, root: Element, starts: list[Element]) -> list[Element]:
    """Return the elements to visit in document order, including ancestors whose href, src, or language matters."""
    query = f"{_STARTS}, [href], [src], [lang]"
    if any(node.attr("rel") or node.attr("rev") for node in starts if not _has_target(node)):
        # The subject of such an element applies to every link below it.
        return [root, *(node for node in tree.select(query)[:_MOST_ELEMENTS] if node is not root)]
    wanted: set[Node] = {root}
    for start in starts[:_MOST_ELEMENTS]:
        node: Node | None = start
        while node is not None and node not in wanted:
            wanted.add(node)
            node = node.parent
    return [root, *(node for node in tree.select(query) if node in wanted and node is not root)]


def _is_statement(node: Element, *, has_vocabulary: bool) -> bool:
    """Whether an element is more than a link whose rel has no meaning in RDFa, such as nofollow."""
    words = f"{node.attr('rel') or ''} {node.attr('rev') or ''}"
    if has_vocabulary or ":" in words or not _TERMS.keys().isdisjoint(words.lower().split()):
        return True
    return any(node.attr(name) is not None for name in ("property", "typeof", "about", "resource", "prefix"))


def _has_target(node: Element) -> bool:
    return any(node.attr(name) is not None for name in ("href", "src", "resource"))


class _Context(NamedTuple):
    """The evaluation context of RDFa Core, 7.2."""

    subject: str
    object: str
    pending: list[tuple[str, str]]
    """Incomplete statements: a direction, which is `rel`, `rev` or `list`, and a property."""
    lists: Lists
    language: str
    prefixes: Mapping[str, str]
    vocabulary: str


class _Reader:
    """Reads the statements of one page."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._subjects: dict[str, dict[str, Any]] = {}
        self._left, self._text_left = _MOST_STATEMENTS, _MOST_TEXT
        self._names = 0
        self._blank: dict[str, str] = {}

    def read(self, root: Element, nodes: list[Element]) -> list[dict[str, Any]]:
        """Visit the elements in order. A list is complete after all descendants of its subject."""
        contexts: dict[Node, _Context] = {}
        first = _Context(self._base, self._base, [], {}, "", _PREFIXES, "")
        above: dict[Node, Node] = {}
        inside: list[tuple[Node, str, Lists | None]] = []
        for node in nodes:
            if self._left <= 0 or self._text_left <= 0:
                break
            around = _nearest(node, contexts, above) if node is not root else None
            while inside and inside[-1][0] is not around:
                self._end_lists(*inside.pop()[1:])
            before = contexts[around] if around is not None else first
            contexts[node], subject, lists = self._element(node, before, is_root=node is root)
            inside.append((node, subject, lists if lists is not before.lists else None))
        while inside:
            self._end_lists(*inside.pop()[1:])
        return list(self._subjects.values())

    def _element(self, node: Element, given: _Context, *, is_root: bool) -> tuple[_Context, str, Lists]:
        """Apply the steps of RDFa Core, 7.5, in their order."""
        names = self._scope(node, given)
        prop, rel, rev = node.attr("property"), node.attr("rel"), node.attr("rev")
        if prop is not None:
            rel, rev = _without_terms(rel), _without_terms(rev)
        kind, inlist = node.attr("typeof"), node.attr("inlist") is not None
        about = self._resource(node.attr("about"), names)
        target = self._resource(node.attr("resource"), names)
        linked = next((self._iri(url) for name in ("href", "src") if (url := node.attr(name)) is not None), "")
        target = target or linked
        has_link = rel is not None or rev is not None
        fallback = self._base if is_root else given.object if node.tag in {"head", "body"} else ""
        if has_link:
            subject = about or fallback or given.object
            found = target or (self._new_name() if kind is not None and not about else "")
            typed = "" if kind is None else about or found
        else:
            subject, found, typed = self._without_link(node, given, about, target, fallback)
        skips = not has_link and kind is None and prop is None and not (about or target or fallback)
        for one in self._properties(kind, names):
            self._add_type(typed, one)
        lists = {} if subject and subject != given.object else given.lists
        pending: list[tuple[str, str]] = []
        forward, backward = self._properties(rel, names), self._properties(rev, names)
        if found and has_link:
            self._state(subject, forward, {"@id": found}, lists if inlist else None)
            for one in backward:
                self._add(found, one, {"@id": subject})
        elif forward or backward:
            pending = [("list" if inlist else "rel", one) for one in forward] + [("rev", one) for one in backward]
            if inlist:
                for one in forward:
                    lists.setdefault(one, [])
            found = self._new_name()
        properties = self._properties(prop, names)
        if properties and subject:
            value = self._value(node, names, "" if has_link else target, typed if not about else "")
            self._state(subject, properties, value, lists if inlist else None)
        if not skips and subject:
            self._complete(given, subject)
        if skips:
            return names._replace(lists=lists), subject, lists
        below = found or subject or given.subject
        return names._replace(subject=subject, object=below, pending=pending, lists=lists), subject, lists

    def _without_link(
        self, node: Element, given: _Context, about: str, target: str, fallback: str
    ) -> tuple[str, str, str]:
        """RDFa Core, 7.5, step 5: subject, object, and typed resource of an element without rel and rev."""
        has_type = node.attr("typeof") is not None
        if node.attr("property") is None or node.attr("content") is not None or node.attr("datatype") is not None:
            subject = about or target or fallback or (self._new_name() if has_type else given.object)
            return subject, "", subject if has_type else ""
        found = (about or fallback or target or self._new_name()) if has_type else ""
        return about or fallback or given.object, found, found

    def _scope(self, node: Element, given: _Context) -> _Context:
        """Return the context with the element's vocabulary, prefixes, and language."""
        vocabulary, prefixes, language = node.attr("vocab"), given.prefixes, node.attr("lang")
        if vocabulary is not None:
            vocabulary = vocabulary.strip() and self._iri(vocabulary)
            if vocabulary:
                self._add(self._base, f"{_RDFA}usesVocabulary", {"@id": vocabulary})
            given = given._replace(vocabulary=vocabulary)
        more = [(name[6:], node.attr(name) or "") for name in node.attrs if name.startswith("xmlns:")]
        if (prefix_list := node.attr("prefix")) is not None:
            more += [(name, iri) for name, iri in _PREFIX.findall(prefix_list) if name and name != "_"]
        if more and len(prefixes) < _MOST_PREFIXES:
            named = {name.lower(): iri for name, iri in more[: _MOST_PREFIXES - len(prefixes)]}
            given = given._replace(prefixes={**prefixes, **named})
        return given if language is None else given._replace(language=language.strip())

    def _complete(self, given: _Context, subject: str) -> None:
        for direction, one in given.pending:
            if direction == "rel":
                self._add(given.subject, one, {"@id": subject})
            elif direction == "rev":
                self._add(subject, one, {"@id": given.subject})
            else:
                given.lists.setdefault(one, []).append({"@id": subject})

    def _value(self, node: Element, names: _Context, target: str, typed: str) -> Value:
        """Return the value of an element's properties: RDFa Core, 7.5, step 11, with the dates of HTML+RDFa."""
        content, datatype = node.attr("content"), node.attr("datatype")
        moment = node.attr("datetime")
        if datatype is not None:
            kind = next(iter(self._properties(datatype, names)), "")
            text = content if content is not None else moment if moment is not None else None
            if kind in {f"{_RDF}XMLLiteral", f"{_RDF}HTML"} and text is None:
                text = node.inner_html
            return self._literal(node.text if text is None else text, kind, names.language)
        if content is not None:
            return self._literal(content, "", names.language)
        if moment is not None or node.tag == "time":
            text = (moment if moment is not None else node.text).strip()
            kind = next((f"{_XSD}{name}" for pattern, name in _DATES if pattern.fullmatch(text)), "")
            return self._literal(text, kind, names.language)
        if target and not typed:
            return {"@id": target}
        if node.attr("typeof") is not None and typed:
            return {"@id": typed}
        return self._literal(node.text, "", names.language)

    def _literal(self, text: str, kind: str, language: str) -> Value:
        self._text_left -= len(text)
        value: Value = {"@value": text[:_LONGEST]}
        if kind:
            value["@type"] = kind
        elif language:
            value["@language"] = language
        return value

    # Names

    def _properties(self, text: str | None, names: _Context) -> list[str]:
        """Resolve terms, CURIEs, and IRIs to IRIs; others are skipped."""
        return [iri for word in (text or "").split() if (iri := self._term(word, names))] if text else []

    def _term(self, word: str, names: _Context) -> str:
        if ":" in word:
            found = self._curie(word, names)
            return found or (word if _ABSOLUTE.match(word) else "")
        if not _TERM.fullmatch(word):
            return ""
        return names.vocabulary + word if names.vocabulary else _TERMS.get(word) or _TERMS.get(word.lower(), "")

    def _curie(self, word: str, names: _Context) -> str:
        prefix, _, name = word.partition(":")
        if prefix == "_":
            if name not in self._blank:
                self._blank[name] = self._new_name()
            return self._blank[name]
        if name.startswith("//"):
            return ""
        found = names.prefixes.get(prefix.lower(), _XHV if not prefix else "")
        return found + name if found else ""

    def _resource(self, text: str | None, names: _Context) -> str:
        """Resolve an about or resource attribute: a CURIE, also in brackets, or an IRI."""
        if text is None:
            return ""
        text = text.strip()
        if text.startswith("[") and text.endswith("]"):
            return self._curie(text[1:-1], names) if ":" in text else ""
        return (self._curie(text, names) if ":" in text else "") or self._iri(text)

    def _iri(self, reference: str) -> str:
        try:
            return urljoin(self._base, reference.strip())
        except ValueError:
            return ""

    def _new_name(self) -> str:
        self._names += 1
        return f"_:b{self._names - 1}"

    # Statements

    def _subject(self, name: str) -> dict[str, Any]:
        return self._subjects.setdefault(name, {"@id": name})

    def _add(self, subject: str, name: str, value: Value) -> None:
        if self._left > 0:
            self._left -= 1
            self._subject(subject).setdefault(name, []).append(value)

    def _state(self, subject: str, names: list[str], value: Value, lists: Lists | None) -> None:
        """Add a statement for each property, or append its value to the property's list."""
        for name in names:
            if lists is not None:
                lists.setdefault(name, []).append(value)
            else:
                self._add(subject, name, value)

    def _add_type(self, subject: str, name: str) -> None:
        if self._left > 0 and subject:
            self._left -= 1
            types = self._subject(subject).setdefault("@type", [])
            if name not in types[-16:]:
                types.append(name)

    def _end_lists(self, subject: str, lists: Lists | None) -> None:
        for name, values in (lists or {}).items():
            self._add(subject, name, {"@list": values})


def _nearest(node: Node, contexts: Mapping[Node, _Context], above: dict[Node, Node]) -> Node | None:
    """Return the nearest visited ancestor. Ancestors walked are cached, so that none is walked twice."""
    passed = []
    one: Node | None = node.parent
    while one is not None and one not in contexts:
        if one in above:
            one = above[one]
            break
        passed.append(one)
        one = one.parent
    if one is not None:
        above.update((each, one) for each in passed)
    return one


def _without_terms(words: str | None) -> str | None:
    """Keep only CURIEs and IRIs: next to a property attribute, plain terms of rel are not statements."""
    kept = " ".join(word for word in (words or "").split() if ":" in word)
    return kept or None
