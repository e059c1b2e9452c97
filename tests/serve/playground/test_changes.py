"""The panel of changes: items and rules are put and removed on the page, and the answer beside it changes."""

import re

import httpx
import pytest

from tests.serve.playground.seen import card_ids, check_accessible, tab_to, wait_for, wait_for_ids, wait_until
from tests.serve.playground.shops import files_of, running, texts

pytestmark = pytest.mark.slow

EVERY = "num_items=100&num_beams=100"
LAST = "#changes li:first-child"


@pytest.fixture
def live(shop):
    with running(files_of(shop)) as server:
        yield server


@pytest.fixture(scope="module")
def text_shop(tmp_path_factory):
    with running(texts(tmp_path_factory.mktemp("texts"), [f"P{n}" for n in range(40)])) as server:
        yield server


def item_of(server, item_id):
    return httpx.get(f"{server.url}/v1/items/{item_id}")


def test_an_item_with_codes_appears_and_goes_and_comes_back(open_page, live):
    page = open_page(f"#item=1000&{EVERY}", at=live.url)
    wait_for(page, "A new item needs codes: there is no encoder here.")
    for name, value in {"item_id": "7", "title": "a fresh thing", "price": "3", "stock": "1", "codes": "1 2"}.items():
        page.fill(f"#item [name={name}]", value)
    page.click("text=Put the item")
    wait_for_ids(page, "ids.includes('7')")
    place = card_ids(page).index("7") + 1
    wait_for(page, "Put a fresh thing: on disk in")
    assert f"it is number {place} of the answer" in page.inner_text(LAST)
    card = page.locator("#with .card[data-id='7']")
    assert "new here" in card.inner_text()
    assert "codes 1 \u203a 2" in card.inner_text()
    assert item_of(live, 7).json()["attributes"] == {"title": "a fresh thing", "price": 3, "stock": 1}
    page.click("[aria-label='Remove: a fresh thing']")
    wait_for_ids(page, "!ids.includes('7')")
    assert item_of(live, 7).status_code == 404
    page.click(f"{LAST} >> text=Put it back")
    wait_for_ids(page, "ids.includes('7')")
    assert item_of(live, 7).json()["codes"] == [1, 2]
    assert page.inner_text("#server").endswith("+3")


def test_an_item_with_text_alone_gets_codes_and_appears(open_page, text_shop):
    page = open_page(f"#item=P0&{EVERY}", at=text_shop.url)
    wait_for(page, "A new item gets its codes from title")
    page.click("[aria-label='Copy as new: green tea 5']")
    assert page.input_value("#item [name=item_id]") == "P5-copy"
    assert page.input_value("#item [name=day]") == "2026-07-15"
    assert page.evaluate("document.activeElement.name") == "title"
    page.fill("#item [name=title]", "green tea of the new season")
    page.keyboard.press("Enter")
    wait_for_ids(page, "ids.includes('P5-copy')")
    found = item_of(text_shop, "P5-copy").json()
    assert found["attributes"] == {"title": "green tea of the new season", "price": 5.0, "day": "2026-07-15"}
    assert "codes " + " \u203a ".join(map(str, found["codes"])) in page.inner_text(".card[data-id='P5-copy']")
    assert found["codes"][0] == item_of(text_shop, "P5").json()["codes"][0]  # beside what it is like
    page.click("[aria-label='Remove: green tea of the new season']")
    wait_for_ids(page, "!ids.includes('P5-copy')")


def test_a_wrong_item_is_explained_and_changes_nothing(open_page, live):
    page = open_page(f"#item=1000&{EVERY}", at=live.url, refused=True)
    before = card_ids(page)
    for codes, says in (("8 2", "codebook"), ("1 zwei", "line 1"), ("1", "2"), ("1 99999999999999999999", "line 1")):
        page.fill("#item [name=item_id]", "7")
        page.fill("#item [name=codes]", codes)
        page.evaluate("document.querySelector('#changes').replaceChildren()")
        page.click("text=Put the item")
        page.wait_for_selector(f"{LAST} .error")
        assert "Put 7 failed" in page.inner_text(LAST)
        assert says in page.inner_text(LAST), page.inner_text(LAST)
    assert item_of(live, 7).status_code == 404
    page.click("#request button[type=submit]")
    assert card_ids(page) == before


def test_a_rule_is_put_chosen_and_removed(open_page, text_shop):
    page = open_page(f"#item=P0&{EVERY}", at=text_shop.url, refused=True)
    page.fill("#rule-name", "costly")
    page.fill("#rule-where", "pri")
    page.keyboard.press("ArrowDown")
    assert "double" in page.inner_text("#columns [aria-selected=true]")
    page.keyboard.press("Enter")
    assert page.input_value("#rule-where") == "price"
    page.keyboard.type(" > 29")
    page.keyboard.press("Enter")
    page.check("#rules input[value=costly]")
    wait_for(page, "These rules allow 10 of 40 items.")
    wait_for_ids(page, "ids.length === 10 && ids.every(id => Number(id.slice(1)) > 29)")
    page.click("#changes >> text=Remove it")
    wait_for(page, "no such rule")
    wait_until(page, "() => document.querySelector('#error').textContent.includes('costly')")
    page.uncheck("#rules input[value=costly]")
    wait_for_ids(page, "ids.length > 10")
    assert page.is_hidden("#error")


def test_a_predicate_that_is_no_sql_is_explained(open_page, live):
    page = open_page("#item=1000", at=live.url, refused=True)
    page.fill("#rule-name", "bad")
    page.fill("#rule-where", "price <")
    page.click("text=Put the rule")
    page.wait_for_selector(f"{LAST} .error")
    assert "Put the rule bad failed" in page.inner_text(LAST)
    assert page.locator("#rules input[value=bad]").count() == 0


def test_sliders_choose_among_the_rules_of_a_column(open_page, text_shop):
    page = open_page(f"#item=P0&{EVERY}", at=text_shop.url)
    price, day = page.locator("#sliders input").nth(0), page.locator("#sliders input").nth(1)
    assert page.locator("#sliders label").all_inner_texts() == ["price: any", "day: any"]
    price.focus()
    page.keyboard.press("ArrowRight")
    wait_until(page, "() => location.hash.includes('rule=under_20')")
    wait_for_ids(page, "ids.length > 0 && ids.every(id => Number(id.slice(1)) < 20)")
    page.keyboard.press("ArrowRight")
    wait_until(page, "() => location.hash.includes('rule=under_10') && !location.hash.includes('under_20')")
    wait_for_ids(page, "ids.length > 0 && ids.every(id => Number(id.slice(1)) < 10)")
    assert price.get_attribute("aria-valuetext") == "below 10"
    assert page.is_checked("#rules input[value=under_10]")
    day.focus()
    page.keyboard.press("End")
    assert day.get_attribute("aria-valuetext") == "since 2026-07-01"
    wait_for_ids(page, "ids.length > 0 && ids.every(id => Number(id.slice(1)) < 10 && Number(id.slice(1)) % 2 === 1)")
    page.uncheck("#rules input[value=under_10]")
    wait_until(page, "() => document.querySelector('#sliders output').textContent === 'any'")


def test_a_filter_is_completed_by_the_columns_that_rules_read(open_page, text_shop):
    page = open_page("#item=P0", at=text_shop.url, refused=True)
    page.fill("#filter", "since_june & PRI")
    page.wait_for_selector("#names [role=option]")
    assert re.findall(r"under_\d+", page.inner_text("#names")) == ["under_10", "under_20"]
    assert "10 items · price < 10" in page.inner_text("#names")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.input_value("#filter") == "since_june & under_10"
    wait_for(page, "These rules allow 10 of 40 items.")


def test_the_live_panel_shows_the_changes_of_this_page(open_page, live):
    page = open_page(f"#item=1000&{EVERY}", at=live.url)
    page.locator("#live").scroll_into_view_if_needed()
    page.wait_for_selector("#live dd")

    def tile(name: str) -> str:
        return f"[...document.querySelectorAll('#live div')].find(one => one.innerText.startsWith('{name}')).innerText"

    assert page.evaluate(tile("catalog version")).endswith(item_of(live, 1000).json()["index_version"])
    page.click("[aria-label='Remove: thing 1001']")
    page.locator("#live").scroll_into_view_if_needed()
    wait_until(page, f"() => {tile('catalog version')}.endsWith('+1')")
    wait_until(page, f"() => /(99|second)$/.test({tile('items')})")  # of another answer than the version
    wait_until(page, f"() => Number({tile('item changes a second')}.match(/[\\d.]+$/)) > 0")
    wait_until(page, f"() => /p50\\s+\\d+\\.\\d ms/.test({tile('p50')}) && /p99\\s+\\d+\\.\\d ms/.test({tile('p99')})")
    wait_until(page, f"() => /\\d\\.\\d$/.test({tile('requests a batch')})")


def test_what_is_taken_is_counted_and_joins_the_history(open_page, shop):
    with running(files_of(shop, learn=True)) as server:
        page = open_page("#item=1005&channel=memory", at=server.url)
        wait_for(page, "popular, to fill up the answer")  # nothing follows 1005 yet
        page.select_option("#channel", "model")
        page.wait_for_selector(".card")
        taken = card_ids(page)[0]
        page.click(f"[aria-label='Take: thing {taken}']")
        wait_for(page, f"Counted thing {taken} after the 1 item of the history: on disk in")
        assert f"item={taken}" in page.url
        page.click(f"[aria-label='Take out thing {taken}']")
        page.select_option("#channel", "memory")
        wait_for(page, "from users who took it after thing 1005")
        assert card_ids(page)[0] == taken
        assert "from users who took it after thing 1005" in page.inner_text("#with .card")


def test_a_server_that_counts_nothing_offers_no_take(open_page, live):
    page = open_page("#item=1000", at=live.url)
    page.wait_for_selector("[aria-label^='Remove:']")
    assert page.locator("[aria-label^='Take:']").count() == 0


def test_a_server_that_takes_no_changes_says_why(open_page, shop, address):
    with running(files_of(shop), changes="off") as server:
        page = open_page("#item=1000", at=server.url)
        wait_for(page, "Items and rules cannot be changed here: this server was started with --changes off.")
        assert page.is_hidden("#item")
        assert page.locator("[aria-label^='Remove:']").count() == 0


def test_items_are_put_and_removed_with_the_keyboard_alone(open_page, live):
    page = open_page(f"#item=1000&{EVERY}", at=live.url, reduced_motion="reduce")
    tab_to(page, "it.textContent === 'Remove' && it.getAttribute('aria-label').endsWith('thing 1001')", 500)
    second = card_ids(page)[card_ids(page).index("1001") + 1] if card_ids(page)[-1] != "1001" else card_ids(page)[-2]
    page.keyboard.press("Enter")
    wait_for_ids(page, "!ids.includes('1001')")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == f"Remove: thing {second}"
    tab_to(page, "it.name === 'item_id'", 500)
    page.keyboard.type("7")
    tab_to(page, "it.name === 'codes'")
    page.keyboard.type("1 2")
    page.keyboard.press("Enter")
    wait_for_ids(page, "ids.includes('7')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_the_panel_is_accessible_and_fits(open_page, text_shop, scheme, width):
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
    page = open_page("#item=P0&rule=under_20", at=text_shop.url, refused=True, **options)
    page.fill("#rule-name", "bad")
    page.fill("#rule-where", "price <")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{LAST} .error")
    page.fill("#rule-where", "pri")
    page.wait_for_selector("#columns [role=option]")
    check_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_boosts_caps_and_quotas_are_chosen_and_the_list_without_them_stands_beside(open_page, live):
    put = httpx.put(f"{live.url}/v1/boosts/dear", json={"expression": "price"})
    assert put.status_code == 200, put.text
    page = open_page("#item=1000", at=live.url)
    before = card_ids(page)
    assert page.is_hidden("#without")
    page.locator("#boosts input").fill("3")
    page.wait_for_selector("#without .card")
    assert card_ids(page, "without") == before
    assert "boost=dear%3A3" in page.evaluate("location.hash")
    assert "of it from boosts" in page.locator("#with .card").first.inner_text()
    prices = [item_of(live, one).json()["attributes"]["price"] for one in card_ids(page)]
    assert sum(prices) > sum(item_of(live, one).json()["attributes"]["price"] for one in before)
    page.select_option("#cap-name", "stock")
    page.fill("#cap-number", "1")
    wait_until(page, "() => document.querySelectorAll('#with .card').length < 10")
    stocks = [item_of(live, one).json()["attributes"]["stock"] for one in card_ids(page)]
    assert len(set(stocks)) == len(stocks)
    check_accessible(page)
    again = open_page(page.evaluate("location.hash"), at=live.url)
    assert card_ids(again) == card_ids(page)
    assert again.locator("#boosts input").input_value() == "3"
