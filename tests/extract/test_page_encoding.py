from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.extract.encoding import NAMES, codec, declared, decode, detect, encode
from gossamer.extract.links import encode_query

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
def test_charset_spellings_are_accepted(header: str, name: str) -> None:
    assert declared(b"", header) == name


@pytest.mark.parametrize("label", ["utf-7", "rot13", "base64", "", "x" * 5000])
def test_unknown_charset_in_the_header_is_ignored(label: str) -> None:
    """H38: utf-7 and the like."""
    assert detect(b"<meta charset=iso-8859-5>", f"text/html; charset={label}") == "iso-8859-5"


def test_meta_utf_16_means_utf_8() -> None:
    assert detect(b"<meta charset=utf-16>") == "utf-8"


def test_meta_x_user_defined_means_windows_1252() -> None:
    assert detect(b"<meta charset=x-user-defined>") == "windows-1252"


def test_http_equiv_needs_both_attributes() -> None:
    assert declared(b'<meta http-equiv=content-type content="text/html; charset=big5">') == "big5"
    assert declared(b'<meta content="text/html; charset=big5">') is None
    assert declared(b'<meta name=x content="charset=big5">') is None


@pytest.mark.parametrize(
    "content", ["charset=;charset=big5", "charset='koi8-r; charset=big5", "charset = nope;charset=big5"]
)
def test_only_the_first_charset_of_a_content_counts(content: str) -> None:
    assert declared(f'<meta http-equiv=content-type content="{content}">'.encode()) is None
    assert declared(f'<meta http-equiv=content-type content="charset {content}">'.encode()) is None


def test_meta_in_a_comment_does_not_count() -> None:
    assert declared(b"<!-- <meta charset=big5> --><meta charset=koi8-r>") == "koi8-r"


def test_xml_declaration_counts_where_no_meta_does() -> None:
    assert declared(b'<?xml version="1.0" encoding="iso-8859-2"?><html>') == "iso-8859-2"
    assert declared(b'<?xml encoding-x="gbk" encoding="iso-8859-2"?><html>') is None


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
def test_detector_finds_undeclared_encodings(text: str, encoding: str) -> None:
    body = b"<html><body><p>" + text.encode(codec(encoding)) + b"</p></body></html>"
    assert decode(body, detect(body)) == decode(body, encoding)


def test_undefined_bytes_of_windows_1252_are_controls_as_in_browsers() -> None:
    assert decode(b"\x80\x81\x9d", "windows-1252") == "\u20ac\x81\x9d"


@pytest.mark.parametrize(
    ("encoding", "raw", "text"),
    [
        ("euc-jp", "ada1 a1c1 a1dd f9a1 8eb1", "①～－纊ｱ"),
        ("euc-jp", "a1 3c | 8e 80 3c | 8f a1 3c | 8f f5 ff 3c", "\ufffd<|\ufffd<|\ufffd<|\ufffd<"),
        ("euc-jp", "8fa2b7 a28f 8fa2b7", "～\ufffd～"),
        ("iso-2022-jp", "1b2442 2d21 2141 2422 1b2842 3c", "①～あ<"),
        ("iso-2022-jp", "1b284a 5c7e 1b2849 2131 1b2440 3021 1b2842", "¥‾｡ｱ亜"),
        ("iso-2022-jp", "1b2442 3021 0a 3020 3021 1b2842 3c", "亜\ufffd\ufffd亜<"),
        ("iso-2022-jp", "0e 80 1b 1b28 | 1b2842 1b2442 30 1b2842 3c", "\ufffd\ufffd\ufffd\ufffd(|\ufffd\ufffd<"),
        ("shift_jis", "a0 | 81 3c | 81 ff 3c | 8740 f040", "\ufffd|\ufffd<|\ufffd<|①\ue000"),
        ("big5", "a1fe a241 a2a2 a1a2 41 a242", "／∕╰﹜A﹨"),
        ("big5", "877a a145 a3e1 8862 c6de | 80 | a1 3c | 81 80 3c", "㡵‧€Ê̄〃|\ufffd|\ufffd<|\ufffd<"),
        ("gbk", "80 a6d9 fe59 a3a0 | 81 3c | 8130 3c", "€︐龴\u3000|\ufffd<|\ufffd0<"),
        ("gb18030", "81308130 | 8431a530 | ff30 | 8130 81", "\x80|\ufffd|\ufffd0|\ufffd"),
        ("euc-kr", "81 3c | 81 80 3c | b0a1", "\ufffd<|\ufffd<|가"),
        ("windows-1255", "ca", "\u05ba"),
        ("x-user-defined", "41 80 ff", "A\uf780\uf7ff"),
    ],
)
def test_legacy_encodings_decode_like_in_browsers(encoding: str, raw: str, text: str) -> None:
    """A decoding error never consumes an ASCII byte, which may start a tag."""
    body = bytes.fromhex(raw.replace("|", "7c"))
    assert decode(body, encoding) == text
    # A large one, which is read in slices, reads the same.
    assert decode(body + b"|" * 2_000_000, encoding).rstrip("|") == decode(body + b"|", encoding).rstrip("|")


@pytest.mark.parametrize(
    ("encoding", "written", "query"),
    [
        ("euc-jp", "①～纊−¥", "%AD%A1%A1%C1%F9%A1%A1%DD\\"),
        ("euc-jp", "丂ｱ", "%26%2319970%3B%8E%B1"),
        ("iso-2022-jp", "あaア‾é", "%1B$B$%22%1B(Ba%1B$B%%22%1B(J~%26%23233%3B%1B(B"),
        ("iso-2022-jp", "\x1ba", "%26%2365533%3Ba"),
        ("big5", "†‧㡵€十", "%26%238224%3B%A1E%26%2314453%3B%A3%E1%A4Q"),
        ("gbk", "€\ue5e5한😀\ue78d", "%80%26%2358853%3B%26%2354620%3B%26%23128512%3B%A6%D9"),
        ("gb18030", "€\ue5e5한", "%A2%E3%26%2358853%3B%836%843"),
        ("shift_jis", "−¥①¢\ue000釗ｱ", "%81|\\%87@%26%23162%3B%26%2357344%3B%FB%BB%B1"),
        ("windows-1252", "€\x81", "%80%81"),
        ("koi8-u", "ў╝", "%AE%26%239565%3B"),
        ("x-user-defined", "é\uf7e9", "%26%23233%3B%E9"),
    ],
)
def test_queries_are_encoded_in_the_page_encoding(encoding: str, written: str, query: str) -> None:
    assert encode_query(f"?{written}", encoding) == f"?{query}"


@pytest.mark.parametrize("encoding", sorted(set(NAMES.values()) - {"replacement", "utf-16le", "utf-16be"}))
def test_encoding_round_trip(encoding: str) -> None:
    letters = map(chr, (*range(0xA6, 0x2000), *range(0x3000, 0xA000, 7)))
    written = {letter: encode(letter, encoding, lambda _: b"") for letter in letters}
    assert any(written.values()) or encoding == "x-user-defined"
    assert all(decode(raw, encoding) == letter for letter, raw in written.items() if raw)


def test_body_of_invalid_bytes_is_decoded_to_its_end() -> None:
    for raw in (b"\x1b$B", b"\x1b$B0!", b"\x0e", b"\x1b"):
        assert decode(raw * 60_000 + b"\x1b(B<p>", "iso-2022-jp").endswith("<p>")
    assert decode(b"\xa2A" * 3000, "big5")[:2000] == "\u2215" * 2000


def test_header_x_user_defined_is_honored() -> None:
    assert detect(b"<meta charset=iso-8859-5>", "text/html; charset=x-user-defined") == "x-user-defined"


def test_replacement_encodings_give_one_replacement_character() -> None:
    assert decode(b"~{<:Ky2;VS{NpJ)l6HK!#~}", "hz-gb-2312") == "\ufffd"


def test_byte_order_mark_is_removed() -> None:
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


@pytest.mark.parametrize(
    ("host", "encoding", "text"),
    [
        ("x.com", "windows-1252", "<title>John\u2019s page</title>"),
        ("x.com", "windows-1252", "<p>It\u2019s \u201cgood\u201d \u2013 isn\u2019t it\u2026</p>"),
        ("x.com", "windows-1252", "\xa9 2020 Acme\xae, 20\xb0C, \xa35"),
        ("127.0.0.1", "windows-1252", "caf\xe9 au lait"),
        ("x.fr", "windows-1252", "d\xe9j\xe0 vu \xe0 l\u2019\xe9cole"),
        ("x.is", "windows-1252", "\xcdsland \xfea\xf0"),
        ("x.pl", "iso-8859-2", "Za\u017c\xf3\u0142\u0107 \u017b\xf3\u0142w"),
        ("x.cz", "windows-1250", "\u010cesk\xfd k\u016f\u0148"),
        ("x.tr", "windows-1254", "G\xfcne\u015f \u0131\u015f\u0131\u011f\u0131"),
        ("x.ee", "windows-1257", "\xd5htu s\xf5ber"),
        ("x.ru", "windows-1251", "\u041f\u0440\u0438\u0432\u0435\u0442"),
        ("x.ru", "koi8-r", "\u041f\u0440\u0438\u0432\u0435\u0442"),
        ("x.gr", "iso-8859-7", "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1"),
        ("x.il", "windows-1255", "\u05e9\u05dc\u05d5\u05dd"),
        ("x.eg", "windows-1256", "\u0645\u0631\u062d\u0628\u0627"),
        ("x.th", "windows-874", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35"),
        ("x.jp", "shift_jis", "\u65e5\u672c\u8a9e"),
        ("x.jp", "shift_jis", "\u30a2\u30a4\u30c6\u30e0"),
        ("x.jp", "euc-jp", "\u3053\u3093\u306b\u3061\u306f"),
        ("x.cn", "gbk", "\u9996\u9875"),
        ("x.tw", "big5", "\u4f60\u597d"),
        ("x.kr", "euc-kr", "\uc548\ub155"),
    ],
)
def test_short_undeclared_page_uses_the_encoding_of_its_country(host: str, encoding: str, text: str) -> None:
    body = text.encode(codec(encoding))
    assert decode(body, detect(body, host=host)) == text


def test_declared_encoding_overrides_the_country() -> None:
    assert detect(b"<meta charset=koi8-r>\xe9", host="x.fr") == "koi8-r"
    assert detect("caf\xe9".encode(), host="x.ru") == "utf-8"
    long = "Новости дня сегодня в Москве и области, погода и спорт".encode("cp1251")
    assert detect(long, host="x.fr") == "windows-1251"
