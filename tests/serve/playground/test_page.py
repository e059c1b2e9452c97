"""The playground in a headless Chromium: by mouse, by keyboard alone, on a phone, in the dark, and by axe's rules."""

import contextlib
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.serve.playground.seen import card_ids, check_accessible, tab_to, wait_for
from tests.serve.running import thread

pytestmark = pytest.mark.slow


def test_a_title_is_searched_and_joins_the_history(open_page):
    page = open_page("#item=1000")
    page.fill("#search", "THING 1042")
    page.click("#found [role=option]")
    page.wait_for_function("() => location.hash === '#item=1000&item=1042'")
    assert page.locator("#history li").all_inner_texts()[1].startswith("thing 1042")
    page.click("[aria-label='Take out thing 1000']")
    page.wait_for_function("() => location.hash === '#item=1042'")


def test_the_history_of_a_user_is_taken_by_id(open_page, first_shop, tmp_path):
    log = pa.table({"user_id": [7, 7, 8], "item_id": [1042, 1003, 1000], "timestamp": [1, 2, 3]})
    pq.write_table(log, tmp_path / "log.parquet")
    with thread(first_shop.engine(), users=tmp_path / "log.parquet") as server:
        page = open_page("#item=1000", at=server.url)
        page.get_by_label("or take the history of a user").fill("7")
        page.keyboard.press("Enter")
        page.wait_for_function("() => location.hash === '#item=1042&item=1003'")
        assert page.locator("#history li").all_inner_texts()[0].startswith("thing 1042")
        check_accessible(page)


def test_without_a_log_no_user_is_asked_for(open_page):
    assert open_page("#item=1000").is_hidden("#user")


def test_a_rule_marks_what_it_forbids_and_its_answer_obeys_it(open_page, first_shop):
    page = open_page("#item=1000")
    assert page.is_hidden("#without")
    page.check("#rules input[value=cheap]")
    page.wait_for_selector("#without .card")
    cheap = first_shop.allowed(["cheap"], [])
    assert page.locator("label:has(input[value=cheap]) .count").inner_text() == f"{len(cheap)} items"
    wait_for(page, f"These rules allow {len(cheap)} of 100 items.")
    assert set(map(int, card_ids(page))) <= cheap
    broken = [int(one.get_attribute("data-id")) for one in page.query_selector_all("#without .broken")]
    assert broken == [one for one in map(int, card_ids(page, "without")) if one not in cheap]
    assert broken
    assert page.locator("#without .broken").first.inner_text().count("✗ breaks cheap") == 1
    assert f"without rules, {len(broken)} of 10 would break them" in page.inner_text("#summary")


def test_an_expression_is_completed_and_a_wrong_one_is_explained(open_page, first_shop):
    page = open_page("#item=1000", refused=True)
    page.fill("#filter", "cheap - in")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.input_value("#filter") == "cheap - in_stock"
    page.wait_for_selector("#without .card")
    assert set(map(int, card_ids(page))) <= first_shop.allowed(["cheap"], []) - first_shop.allowed(["in_stock"], [])
    page.fill("#filter", "cheap - ")
    page.wait_for_selector("#error:not([hidden])")
    assert "ends where" in page.inner_text("#error")


def test_an_address_holds_the_whole_request(open_page):
    page = open_page("#item=1003&item=1004&rule=in_stock&num_items=4&num_beams=33&filter=cheap&scoring=allowed&leave_out=no")
    assert len(card_ids(page)) == 4
    assert page.is_checked("#rules input[value=in_stock]")
    assert not page.is_checked("#leave_out")
    assert (page.input_value("#num_beams"), page.input_value("#filter"), page.input_value("#scoring")) == (
        "33",
        "cheap",
        "allowed",
    )
    assert "rows of the model" in page.inner_text("#summary")
    page.evaluate("location.hash = '#item=1003&num_items=2'")
    page.wait_for_function("() => document.querySelectorAll('#with .card').length === 2")


def test_the_drawing_has_the_beams_of_each_level_step_by_step(open_page):
    page = open_page("#item=1000&rule=cheap&rule=in_stock&num_beams=10")
    assert page.locator("svg.trie text.head").all_text_contents() == ["level 1, beams: 8 and 8", "level 2, beams: 10 and 10"]
    assert page.locator("svg.trie circle.with").count() > 0
    assert page.locator("svg.trie circle.without").count() > 0
    page.click("#back")
    assert page.inner_text("#level") == "1 of 2 levels"
    assert page.locator("svg.trie [data-level='2']:not(.later)").count() == 0
    page.click("#on")
    page.click("summary")
    assert page.locator("#levels table").first.locator("tbody tr").count() == 18


def test_everything_is_done_with_the_keyboard_alone(open_page):
    page = open_page("#item=1000", reduced_motion="reduce")
    page.keyboard.press("/")
    page.keyboard.type("thing 1050")
    page.wait_for_selector("#found [role=option]")
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("#search", "aria-activedescendant") == "found-0"
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.includes('item=1050')")
    tab_to(page, "it.value === 'cheap'")
    page.keyboard.press("Space")
    page.wait_for_selector("#without .card")
    tab_to(page, "it.textContent === 'Add to history'")
    page.evaluate("document.querySelector('.card').id = 'old'")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelectorAll('#history li').length === 3")
    page.wait_for_selector("#old", state="detached")
    assert page.evaluate("document.activeElement.textContent") == "Add to history"  # and can be pressed again


def test_a_phone_needs_no_horizontal_scroll(open_page):
    page = open_page("#item=1000&rule=cheap", viewport={"width": 360, "height": 740})
    page.wait_for_selector("#without .card")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_axe_finds_no_fault_of_wcag_aa(open_page, scheme, width):
    page = open_page("#item=1000&rule=cheap&filter=in_stock", color_scheme=scheme, viewport={"width": width, "height": 900})
    page.wait_for_selector("#without .broken")
    page.locator("#live-title").scroll_into_view_if_needed()
    page.wait_for_selector("#live dd")
    page.fill("#search", "thing")
    page.wait_for_selector("#found [role=option]")
    check_accessible(page)
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (scheme == "light")


def test_the_live_panel_counts_the_requests_of_this_page(open_page):
    page = open_page("#item=1000")
    page.locator("#live").scroll_into_view_if_needed()
    page.wait_for_selector("#live dd")
    page.click("#request button[type=submit]")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#live div')].some(one => /requests a second\\s+\\d/.test(one.innerText) && "
        "!/\\s0\\.0$/.test(one.innerText.trim()))"
    )


def test_a_title_that_looks_like_html_is_text(open_page):
    page = open_page("#item=1000", refused=True)
    page.fill("#filter", "<img src=x onerror=alert(1)>")
    page.wait_for_selector("#error:not([hidden])")
    assert page.locator("#error img").count() == 0


def test_the_count_of_an_expression_comes_before_its_answer(open_page, first_shop):
    page = open_page("#item=1000")
    both = len(first_shop.allowed(["cheap"], []) & first_shop.allowed(["in_stock"], []))
    held = []
    page.route("**/v1/recommend", lambda route: held.append(route))  # answers wait
    page.fill("#filter", "cheap & in_stock")
    wait_for(page, f"These rules allow {both} of 100 items.")
    assert page.is_hidden("#without")
    for route in held:
        route.continue_()
    page.unroute("**/v1/recommend")
    page.wait_for_selector("#without .card")


def test_python_that_is_copied_gets_the_answer_that_the_page_shows(open_page):
    fragment = "#item=1000&rule=cheap&filter=in_stock&num_items=4&leave_out=no&channel=model&quota=cheap:2"
    page = open_page(fragment, permissions=["clipboard-read", "clipboard-write"])
    page.click("#python")
    page.wait_for_selector("#python:text('Copied')")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(page.evaluate("navigator.clipboard.readText()"), {})
    assert shown.getvalue().strip() == f"({', '.join(card_ids(page))})"
