"""The page of servers that differ: with keys, without a catalog, with ids that a browser's numbers cannot hold."""

import json

import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog
from leafbeam.engine import Engine
from leafbeam.index import Trie
from leafbeam.model import Transformer
from leafbeam.serve import Access, KeyFile
from leafbeam.serve.keys import add_key
from tests.serve.playground.seen import card_ids, check_accessible, tab_to, wait_for, wait_for_ids, wait_until
from tests.serve.playground.shops import files_of, running, texts
from tests.serve.running import thread

pytestmark = pytest.mark.slow

STORED = "() => [JSON.stringify({...sessionStorage}), JSON.stringify({...localStorage}), document.cookie, location.href]"


@pytest.fixture
def keys(tmp_path):
    return {scope: add_key(tmp_path / "keys.json", scope, scope) for scope in ("read", "write", "admin")}


@pytest.fixture
def locked(shop, tmp_path, keys):
    with running(files_of(shop), access=Access(keys=KeyFile(tmp_path / "keys.json"))) as server:
        yield server.url


def test_a_server_with_keys_is_asked_with_the_key_of_its_user(visit, locked, keys):
    page = visit(f"{locked}/#item=1000&rule=cheap", refused=(401, 403))
    page.wait_for_selector("#key-dialog[open]")
    assert page.evaluate("document.activeElement.id") == "key"
    page.keyboard.type("lb_wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-wrong:not([hidden])")
    check_accessible(page)
    page.fill("#key", keys["read"])
    page.keyboard.press("Enter")
    page.wait_for_selector("#without .card")
    assert page.is_hidden("#key-dialog")
    session, local, cookie, address = page.evaluate(STORED)
    assert keys["read"] in session
    assert (local, cookie) == ("{}", "")
    assert "lb_" not in address
    assert page.locator("#rules input:checked").get_attribute("value") == "cheap"  # counts without predicates
    page.locator("#live").scroll_into_view_if_needed()
    wait_for(page, "catalog version")
    page.click("[aria-label='Remove: thing 1001'], [aria-label^='Remove:'] >> nth=0")
    wait_for(page, "failed: the scope of this key does not cover this request")


def test_another_key_takes_the_place_of_one_that_is_forgotten(visit, locked, keys):
    page = visit(f"{locked}/#item=1000&num_items=100&num_beams=100", refused=(401, 403))
    page.fill("#key", keys["read"])
    page.click("text=Use this key")
    page.wait_for_selector("#with .card")
    page.reload()
    page.wait_for_selector("#with .card")  # the tab still has it
    page.click("text=Forget the key")
    page.wait_for_selector("#key-dialog[open]")
    assert json.loads(page.evaluate(STORED)[0]) == {}
    page.fill("#key", keys["admin"])
    page.click("text=Use this key")
    page.wait_for_selector("#with .card")
    page.click("[aria-label='Remove: thing 1001']")
    wait_for_ids(page, "!ids.includes('1001')")


def test_a_question_for_a_key_can_be_dismissed(visit, locked):
    page = visit(f"{locked}/", refused=(401,))
    page.wait_for_selector("#key-dialog[open]")
    page.keyboard.press("Escape")
    wait_for(page, "This server needs a key. Reload the page to enter one.")
    assert page.is_hidden("#key-dialog")


@pytest.fixture
def bare(first_shop):
    """A server of an index without a catalog."""
    with first_shop_engine(first_shop) as server:
        yield server.url


def first_shop_engine(shop):
    return thread(Engine(Transformer.from_pretrained(shop.files[0]), Trie.load(shop.files[1])))


def test_an_index_without_a_catalog_has_a_page_too(open_page, bare):
    page = open_page("#item=1000", at=bare)
    assert page.is_hidden("#ruled")
    assert page.is_hidden("#change")
    page.wait_for_selector("#with .card")
    wait_for(page, "Add an item by id")
    page.fill("#search", "1042")
    page.wait_for_selector("#found [role=option]")
    page.keyboard.press("Enter")
    wait_until(page, "() => location.hash === '#item=1000&item=1042'")
    page.fill("#search", "thing")
    page.keyboard.press("Enter")
    assert page.locator("#found [role=option]").count() == 0
    page.click("[aria-label^='Add to history'] >> nth=0")
    wait_until(page, "() => document.querySelectorAll('#history li').length === 3")
    assert page.locator("svg.trie circle.with").count() > 0
    assert page.inner_text("#server").startswith("100 items, version")
    check_accessible(page)


def test_items_of_the_history_are_left_out_and_counted(open_page, address):
    page = open_page("#item=1000&item=1001&item=1002&num_items=100&num_beams=100")
    assert "3 items of the history left out" in page.inner_text("#summary")
    assert not {"1000", "1001", "1002"} & set(card_ids(page))
    page.uncheck("#leave_out")
    wait_for_ids(page, "['1000', '1001', '1002'].every(id => ids.includes(id))")
    assert "left out" not in page.inner_text("#summary")
    page = open_page("#item=1000&item=7")
    assert "not in the index: 7" in page.inner_text("#summary")


HUGE = [2**53 + 1, 2**53 + 2, 2**53 + 3, 2**63 - 1, -(2**63), -(2**53) - 1, 5, *range(2**60, 2**60 + 33)]


def test_ids_beyond_a_browsers_numbers_keep_their_digits(open_page, tmp_path):
    with running(texts(tmp_path, HUGE)) as server:
        first, last = HUGE[0], HUGE[3]
        page = open_page(f"#item={first}&item={last}&num_items=100&num_beams=100", at=server.url)
        bodies = []
        page.on("request", lambda request: bodies.append(request.post_data or ""))
        assert sorted(map(int, card_ids(page))) == sorted(set(HUGE) - {first, last})
        assert "2 items of the history left out" in page.inner_text("#summary")
        assert "not in the index" not in page.inner_text("#summary")
        page.fill("#search", str(HUGE[1]))
        page.wait_for_selector("#found [role=option]")
        page.keyboard.press("Enter")
        wait_for_ids(page, "!ids.includes(arg)", str(HUGE[1]))
        assert f'"history":[{first},{last},{HUGE[1]}]' in "".join(bodies)
        title = page.inner_text(f".card[data-id='{HUGE[2]}'] h3").split(". ", 1)[1].strip()
        page.click(f"[aria-label='Copy as new: {title}']")
        assert page.input_value("#item [name=item_id]") == str(HUGE[2] + 10**9)
        page.fill("#item [name=item_id]", str(2**62 + 1))
        page.click("text=Put the item")
        wait_for_ids(page, "ids.includes(arg)", str(2**62 + 1))
        page.click(f".card[data-id='{2**62 + 1}'] >> text=Remove")
        wait_for_ids(page, "!ids.includes(arg)", str(2**62 + 1))
        assert len(card_ids(page)) == len(HUGE) - 3


READ_AND_WRITE = "const api = await import('/playground/api.js'); return api.stringify(api.parse(text));"


def test_numbers_are_read_and_written_as_json_has_them(open_page):
    page = open_page("#item=1000")
    for text in (
        '{"a":[9007199254740993,-9223372036854775808,1,0.1234567890123456789,1e21,-0.5]}',
        '{"b":"9007199254740993 \\\\\\" 12345678901234567"}',
        '"\\\\"', "[]", "12345678901234567", '{"12345678901234567":"\\u00e9"}',
    ):  # fmt: skip
        again = page.evaluate(f"async text => {{ {READ_AND_WRITE} }}", text)
        assert json.loads(again) == json.loads(text)


def test_titles_are_text_whatever_they_hold(open_page, first_shop):
    title = '<img src=x onerror="document.title=1">&amp;"\'\\u0000'
    rows = [{"item_id": one, "title": f"{title} {one}", "price": 1.0} for one in first_shop.item_ids]
    model, index, _, _ = first_shop.files
    catalog = Catalog.in_memory(pa.Table.from_pylist(rows), Trie.load(index))
    with catalog, thread(Engine(Transformer.from_pretrained(model), catalog)) as server:
        page = open_page("#item=1000", at=server.url)
        assert title in page.inner_text("#with .card h3")
        assert page.locator("img[src=x]").count() == 0
        assert page.title() == "leafbeam playground"


def test_the_page_says_when_it_can_be_used_and_when_it_has_answered(open_page):
    page = open_page("#item=1000")
    wait_until(page, "() => performance.getEntriesByName('answered').length === 1")
    interactive, answered = page.evaluate(
        "['interactive', 'answered'].map(name => performance.getEntriesByName(name)[0].startTime)"
    )
    assert 0 < interactive < answered


def test_a_key_is_entered_with_the_keyboard_alone(visit, locked, keys):
    page = visit(f"{locked}/#item=1000", refused=(401, 403), viewport={"width": 360, "height": 740})
    page.wait_for_selector("#key-dialog[open]")
    page.keyboard.type(keys["write"])
    tab_to(page, "it.textContent === 'Use this key'", 3)
    page.keyboard.press("Space")
    page.wait_for_selector("#with .card")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
