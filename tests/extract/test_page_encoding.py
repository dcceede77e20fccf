from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.extract.encoding import NAMES, codec, declared, decode, detect

TEXT = "Füße und Straßen, naïve cafés, größere Übungen für schöne Mädchen in München und Köln"


def test_byte_order_mark_beats_header_and_meta() -> None:
    """H38."""
    body = b"\xef\xbb\xbf<meta charset=koi8-r>"
    assert detect(body, "text/html; charset=iso-8859-2") == "utf-8"
    assert detect(b"\xff\xfea\0", "text/html; charset=utf-8") == "utf-16le"
    assert detect(b"\xfe\xff\0a", "") == "utf-16be"


def test_header_beats_meta() -> None:
    assert detect(b"<meta charset=koi8-r>", "text/html; charset=ISO-8859-2") == "iso-8859-2"


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ('text/html; charset="utf-8"', "utf-8"),
        ("text/html;charset= Latin1 ", "windows-1252"),
        ("text/html; CHARSET=gb2312; x=y", "gbk"),
        ("text/html; charset=shift-jis, text/html", "shift_jis"),
    ],
)
def test_header_is_read_in_its_spellings(header: str, name: str) -> None:
    assert declared(b"", header) == name


@pytest.mark.parametrize("label", ["utf-7", "x-user-defined", "rot13", "base64", "", "x" * 5000])
def test_header_that_names_no_usable_encoding_is_passed_over(label: str) -> None:
    """H38: utf-7, x-user-defined and the like."""
    assert detect(b"<meta charset=iso-8859-5>", f"text/html; charset={label}") == "iso-8859-5"


def test_meta_that_says_utf_16_means_utf_8() -> None:
    assert detect(b"<meta charset=utf-16>") == "utf-8"


def test_meta_that_says_x_user_defined_means_windows_1252() -> None:
    assert detect(b"<meta charset=x-user-defined>") == "windows-1252"


def test_http_equiv_needs_both_attributes() -> None:
    assert declared(b'<meta http-equiv=content-type content="text/html; charset=big5">') == "big5"
    assert declared(b'<meta content="text/html; charset=big5">') is None
    assert declared(b'<meta name=x content="charset=big5">') is None


def test_meta_in_a_comment_does_not_count() -> None:
    assert declared(b"<!-- <meta charset=big5> --><meta charset=koi8-r>") == "koi8-r"


def test_xml_declaration_counts_where_no_meta_does() -> None:
    assert declared(b'<?xml version="1.0" encoding="iso-8859-2"?><html>') == "iso-8859-2"


def test_undeclared_utf_8_is_read_as_utf_8_even_when_cut_inside_a_character() -> None:
    assert detect("größe".encode()) == "utf-8"
    assert detect("größe €".encode()[:-1]) == "utf-8"


def test_late_meta_counts_for_bytes_that_are_not_utf_8() -> None:
    body = b"<!--" + b"x" * 2000 + b"--><meta charset=windows-1251><p>" + "Привет".encode("cp1251")
    assert detect(body) == "windows-1251"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Съешь же ещё этих мягких французских булок да выпей чаю. " * 4, "windows-1251"),
        ("吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 4, "shift_jis"),
        ("吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 4, "euc-jp"),
        ("모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. " * 4, "euc-kr"),
        ("人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心。" * 4, "gb18030"),
        (TEXT, "windows-1252"),
    ],
)
def test_detector_finds_what_nobody_declared(text: str, encoding: str) -> None:
    body = b"<html><body><p>" + text.encode(codec(encoding)) + b"</p></body></html>"
    assert decode(body, detect(body)) == decode(body, encoding)


def test_undefined_bytes_of_windows_1252_are_controls_as_in_browsers() -> None:
    assert decode(b"\x80\x81\x9d", "windows-1252") == "\u20ac\x81\x9d"


def test_vendor_characters_of_euc_jp_are_read() -> None:
    assert decode(b"\xad\xa1", "euc-jp") == "①"


def test_replacement_encodings_give_one_replacement_character() -> None:
    assert decode(b"~{<:Ky2;VS{NpJ)l6HK!#~}", "hz-gb-2312") == "\ufffd"


def test_byte_order_mark_is_no_text() -> None:
    assert decode(b"\xef\xbb\xbfa", "utf-8") == "a"
    assert decode(codecs.BOM_UTF16_LE + "a".encode("utf-16-le"), "utf-16le") == "a"


def test_every_label_has_a_codec() -> None:
    for label in NAMES:
        codecs.lookup(codec(label))


@given(st.binary(max_size=200), st.sampled_from([*NAMES, "utf-7", "no such thing", ""]))
def test_decoding_never_raises(body: bytes, encoding: str) -> None:
    """H38."""
    assert isinstance(decode(body, encoding), str)


@given(st.binary(max_size=300), st.text(max_size=40))
def test_detecting_never_raises_and_names_an_encoding(body: bytes, content_type: str) -> None:
    assert detect(body, content_type) in set(NAMES.values())


@given(
    st.lists(
        st.sampled_from([b"<", b"meta ", b"charset=", b'"', b"'", b">", b"/", b"=", b"utf-8", b"<!--", b"-->", b" "])
    )
)
def test_prescan_ends_on_any_markup(parts: list[bytes]) -> None:
    assert declared(b"".join(parts)) in {None, "utf-8"}
