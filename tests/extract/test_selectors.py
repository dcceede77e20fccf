from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.errors import ExtractError
from gossamer.extract.page import Page
from gossamer.model import Request, Response

URL = "http://a.example/shop/"
HTML = """<html><head><title>Shop</title></head><body>
<h1 id=top class="big red">Hello <b>dear</b> reader</h1>
<ul><li class=item data-id=1><a href="/one">One</a> <i>9,50 EUR</i></li>
<li class=item data-id=2><a href="two?x=1&amp;y=2">Two</a> <i>12,00 EUR</i></li></ul>
<input disabled><div><p>outer <span>inner</span></p></div></body></html>"""


def page(html: str = HTML) -> Page:
    headers = (("content-type", "text/html; charset=utf-8"),)
    return Page(Response(url=URL, status=200, headers=headers, body=html.encode()), Request(url=URL))


def test_text_pseudo_element_takes_direct_text() -> None:
    assert page().css("h1::text").getall() == ["Hello ", " reader"]
    assert page().css("h1::text").get() == "Hello "


def test_text_after_a_space_takes_descendant_text() -> None:
    assert page().css("h1 ::text").getall() == ["Hello ", "dear", " reader"]


def test_nested_matches_give_their_text_once() -> None:
    assert page("<div>a<div>b</div></div>").css("div ::text").getall() == ["a", "b"]


def test_attr_pseudo_element_decodes_entities() -> None:
    assert page().css("a::attr(href)").getall() == ["/one", "two?x=1&y=2"]
    assert page().css("input::attr(disabled)").getall() == [""]
    assert page().css("h1::attr(nope)").getall() == []


def test_comma_lists_keep_the_order_of_the_page_and_repeat_nothing() -> None:
    assert page().css("b, h1 b, b").getall() == ["<b>dear</b>"]
    assert page().css("a::text, h1::text").getall() == ["Hello ", " reader", "One", "Two"]


def test_a_comma_list_of_unlike_parts_goes_part_by_part() -> None:
    assert page().css("a::text, h1::attr(id)").getall() == ["One", "Two", "top"]


def test_a_comma_in_quotes_or_brackets_does_not_split() -> None:
    assert page('<p title="a,b">x</p>').css('p[title="a,b"]::text').get() == "x"
    assert page().css("li:is(.item, .other)::attr(data-id)").getall() == ["1", "2"]


def test_selections_nest_index_and_iterate() -> None:
    items = page().css("li.item")
    assert len(items) == 2
    assert [item.css("a::text").get() for item in items] == ["One", "Two"]
    assert items[1].css("a").attrib == {"href": "two?x=1&y=2"}
    assert items[-1:].css("a::text").getall() == ["Two"]
    with pytest.raises(IndexError):
        items[2]


def test_an_empty_selection_is_false_and_gives_defaults() -> None:
    nothing = page().css("blink")
    assert not nothing
    assert nothing.get() is None
    assert nothing.get("none") == "none"
    assert nothing.getall() == []
    assert nothing.attrib == {}
    assert nothing.re_first("x", "none") == "none"


def test_re_gives_groups_or_the_whole_match() -> None:
    prices = page().css("li i::text")
    assert prices.re(r"(\d+),(\d+)") == ["9", "50", "12", "00"]
    assert prices.re(r"\d+,\d+") == ["9,50", "12,00"]
    assert prices.re(r"(?P<extract>\d+),(\d+)") == ["9", "12"]
    assert prices.re_first(r"\d\d,") == "12,"


def test_an_element_is_given_as_its_html() -> None:
    assert page().css("b").get() == "<b>dear</b>"
    assert page().xpath("//b").get() == "<b>dear</b>"


def test_xpath_gives_elements_strings_numbers_and_truth() -> None:
    one = page()
    assert one.xpath("//h1/text()").getall() == ["Hello ", " reader"]
    assert one.xpath("//a/@href").getall() == ["/one", "two?x=1&y=2"]
    assert one.xpath("string(//title)").get() == "Shop"
    assert one.xpath("count(//li)").get() == "2"
    assert one.xpath("boolean(//blink)").get() == "false"
    assert one.xpath("//li[2]/a").attrib == {"href": "two?x=1&y=2"}


def test_css_and_xpath_go_on_from_one_another() -> None:
    one = page()
    assert one.xpath("//ul").css("a::text").getall() == ["One", "Two"]
    assert one.xpath("//li").css("a::attr(href)").getall() == ["/one", "two?x=1&y=2"]
    assert one.xpath("//p").css("p ::text").getall() == ["outer ", "inner"]
    assert one.css("li").xpath("./a/text()").getall() == ["One", "Two"]


@pytest.mark.parametrize(
    "query",
    ["", "h1[", "h1::before", "h1::text b", "h1,", ">>", "p:nosuch", "a:nth-child(", "h1::text::text"],
)
def test_invalid_css_selector_is_named(query: str) -> None:
    with pytest.raises(ExtractError, match="invalid CSS selector") as error:
        page().css(query)
    assert repr(query) in str(error.value)


def test_invalid_selector_is_named_without_markup() -> None:
    blank = Page(Response(url=URL, status=200, headers=(("content-type", "image/png"),)), Request(url=URL))
    with pytest.raises(ExtractError, match="invalid CSS selector"):
        blank.css("h1[")
    assert blank.css("h1::text").getall() == []
    assert blank.xpath("//h1").getall() == []


@pytest.mark.parametrize("query", ["", "//[", "//a[@", "nosuch(1)", "x:y"])
def test_invalid_xpath_expression_is_named(query: str) -> None:
    with pytest.raises(ExtractError, match="invalid XPath expression") as error:
        page().xpath(query)
    assert repr(query) in str(error.value)


def test_invalid_regular_expression_is_named() -> None:
    with pytest.raises(ExtractError, match="invalid regular expression"):
        page().css("h1").re("(")


@given(st.text(alphabet="ab.#[]()='\"*:>,+~ text-attr", max_size=30))
def test_any_selector_works_or_raises_extract_error(query: str) -> None:
    try:
        texts = page().css(query).getall()
    except ExtractError as error:
        texts = [str(error)]
    assert all(isinstance(text, str) for text in texts)


def test_a_combinator_before_a_pseudo_element_takes_any_element() -> None:
    found = page("<div>a<p>b<i>c</i></p><p>d</p></div>")
    assert found.css("div > ::text").getall() == ["b", "d"]
    assert found.css("p + ::text").getall() == ["d"]
    assert found.css("p > ::attr(id)").getall() == []


def test_svg_attributes_keep_their_case() -> None:
    found = page('<svg viewBox="0 0 1 1"></svg>')
    assert found.css("svg::attr(viewBox)").getall() == found.css("svg::attr(viewbox)").getall() == ["0 0 1 1"]


def test_scope_is_the_context_element() -> None:
    found = page("<div><p>a</p><ul><li><p>b</ul></div><section><p>c</section>")
    assert found.css("div, section").css(":scope > p::text").getall() == ["a", "c"]
    assert found.css(":scope > body > section").css("p::text").get() == "c"


def test_languages_and_words_are_found() -> None:
    found = page("<div lang=en-GB><p>colour</p></div><p lang=de>Farbe</p>")
    assert found.css("p:lang(en)::text").getall() == ["colour"]
    assert found.css("p:contains('Far')").css("::text").getall() == ["Farbe"]
    assert found.css("body").css('div p:contains("lou")::text, p:not(:contains(lou))::text').getall() == [
        "colour",
        "Farbe",
    ]


def test_an_element_with_blanks_is_not_empty() -> None:
    found = page("<p></p><p> </p><p><!-- c --></p><p>x</p><i title=':empty'>y</i>")
    assert found.css("p:empty").getall() == ["<p></p>", "<p><!-- c --></p>"]
    assert found.css("body").css("p:not(:empty)").getall() == ["<p> </p>", "<p>x</p>"]
    assert found.css('i[title=":empty"]:not(p:empty)::text').get() == "y"
    with pytest.raises(ExtractError, match="invalid CSS selector"):
        found.css("p[:empty")


@pytest.mark.parametrize("tag", ["html", "body", "p", "td"])
def test_xpath_goes_on_from_any_element(tag: str) -> None:
    found = page("<body><p>a<table><tr><td><a href=x>b</a></table></p>")
    assert found.css(tag).xpath(".//a/@href").get() == "x"
    assert found.css(tag).xpath("self::*").tag == tag


TABLE = "<table><tr><td>name<td class=price>1<td>x</table><table><tr><td>other<td class=price>2</table>"


def test_xpath_sees_ancestors_of_css_results() -> None:
    prices = page(TABLE).css("td.price")
    assert prices.xpath("../td[1]/text()").getall() == ["name", "other"]
    assert prices.xpath("ancestor::table").css("td:last-child::text").getall() == ["x", "2"]
    assert prices[0].xpath("following-sibling::td/text()").getall() == ["x"]
    assert prices[1].xpath("preceding::td[@class]/text()").getall() == ["1"]
    assert prices[0].xpath("//td").getall() == page(TABLE).css("td").getall()


def test_css_on_an_element_stays_inside_it() -> None:
    found = page("<div class=a><p><b>x</b></p></div><p><b>y</b></p>")
    assert found.css("p").css("div b::text").getall() == []
    assert found.css("p").css("p b::text").getall() == ["x", "y"]
    assert found.css("div").css("div.a > p > b::text").getall() == ["x"]
    assert found.css("p").css("body b, b::text").getall() == ["x", "y"]
    assert found.css("p").css(r"div\ x b::text").getall() == []
    assert found.css("div").css(".a p::text, .a  ::text").getall() == ["x"]


def test_variables_need_no_quotes() -> None:
    one = page("""<a id="it's">1</a><a id='"'>2</a><p n=3>x""")
    assert one.xpath("//a[@id=$id]/text()", id="it's").getall() == ["1"]
    assert one.css("body").xpath("a[@id=$id]/text()", id='"').getall() == ["2"]
    assert one.xpath("//p[@n=$n]/text()", n=3).get() == "x"
    with pytest.raises(ExtractError, match="unbound variable"):
        one.xpath("//a[@id=$id]")


def test_has_class_and_regular_expressions_work_in_xpath() -> None:
    one = page("<p class='a\tb-c'>1<p class=ab>2<p>3")
    assert one.xpath("//p[has-class('a')]/text()").getall() == ["1"]
    assert one.xpath("//p[has-class('b-c', 'a')]/text()").getall() == ["1"]
    assert one.xpath("//p[not(has-class('a'))]/text()").getall() == ["2", "3"]
    assert one.xpath(r"//p[re:test(text(), '^[12]$')]/text()").getall() == ["1", "2"]
    with pytest.raises(ExtractError, match="has-class"):
        one.xpath("//p[has-class()]")


def test_svg_is_found_with_and_without_namespace() -> None:
    one = page("<svg viewBox='0 0 1 1'><linearGradient id=g /></svg>")
    assert one.xpath("//svg/@viewBox").get() == one.xpath("//svg:svg/@viewBox").get() == "0 0 1 1"
    assert len(one.xpath("//linearGradient")) == len(one.css("linearGradient")) == 1


def test_one_element_is_the_same_one_to_css_and_xpath() -> None:
    one = page("<div><p>x</p></div><rt><rt><p>y")
    for query in ("p", "div", "body", "rt"):
        assert one.css(query).getall() == one.xpath(f"//{query}").getall()
