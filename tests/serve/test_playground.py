"""The playground in a headless Chromium: by mouse, by keyboard alone, on a phone, in the dark, and by axe's rules."""

import shutil
from collections.abc import Iterator

import pytest

from tests.serve.running import thread

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")]


@pytest.fixture(scope="module")
def address(first_shop) -> Iterator[str]:
    with thread(first_shop.engine()) as server:
        yield server.url


@pytest.fixture(scope="module")
def chromium():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium, address):
    """The playground once it shows an answer; nothing may fail in it. refused: whether it asks for what is refused."""
    contexts, errors = [], []

    def open_at(fragment: str = "", refused: bool = False, **options):
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(20_000)
        page = context.new_page()
        reported = "status of 422" if refused else "nothing"  # the browser reports an answer of 422 too

        def on_console(message) -> None:
            if message.type in ("error", "warning") and reported not in message.text:
                errors.append(message.text)

        page.on("console", on_console)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}/{fragment}")
        page.wait_for_selector("#summary:not(:empty)")
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert errors == []


def card_ids(page, answer: str = "with") -> list[int]:
    return [int(one.get_attribute("data-id")) for one in page.query_selector_all(f"#{answer} .card")]


def wait_for(page, text: str) -> None:
    page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)


def test_a_title_is_searched_and_joins_the_history(open_page):
    page = open_page("#item=1000")
    page.fill("#search", "THING 1042")
    page.click("#found [role=option]")
    page.wait_for_function("() => location.hash === '#item=1000&item=1042'")
    assert page.locator("#history li").all_inner_texts()[1].startswith("thing 1042")
    page.click("[aria-label='Take out thing 1000']")
    page.wait_for_function("() => location.hash === '#item=1042'")


def test_a_rule_marks_what_it_forbids_and_its_answer_obeys_it(open_page, first_shop):
    page = open_page("#item=1000")
    assert page.is_hidden("#without")
    page.check("#rules input[value=cheap]")
    page.wait_for_selector("#without .card")
    cheap = first_shop.allowed(["cheap"], [])
    assert page.locator("label:has(input[value=cheap]) .count").inner_text() == f"{len(cheap)} items"
    wait_for(page, f"These rules allow {len(cheap)} of 100 items.")
    assert set(card_ids(page)) <= cheap
    broken = [int(one.get_attribute("data-id")) for one in page.query_selector_all("#without .broken")]
    assert broken == [one for one in card_ids(page, "without") if one not in cheap]
    assert broken
    assert page.locator("#without .broken").first.inner_text().count("✗ breaks cheap") == 1
    assert f"without rules {len(broken)} of 10 break them" in page.inner_text("#summary")


def test_an_expression_is_completed_and_a_wrong_one_is_explained(open_page, first_shop):
    page = open_page("#item=1000", refused=True)
    page.fill("#filter", "cheap - in")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.input_value("#filter") == "cheap - in_stock"
    page.wait_for_selector("#without .card")
    assert set(card_ids(page)) <= first_shop.allowed(["cheap"], []) - first_shop.allowed(["in_stock"], [])
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
    assert "33 beams" in page.inner_text("#summary")
    page.evaluate("location.hash = '#item=1003&num_items=2'")
    page.wait_for_function("() => document.querySelectorAll('#with .card').length === 2")


def test_the_drawing_has_the_beams_of_each_level_step_by_step(open_page):
    page = open_page("#item=1000&rule=cheap&rule=in_stock&num_beams=10")
    assert page.locator("svg.trie text.head").all_text_contents() == ["level 1: 8 and 8 beams", "level 2: 10 and 10 beams"]
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
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.value") == "cheap":
            break
    page.keyboard.press("Space")
    page.wait_for_selector("#without .card")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Add to history":
            break
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelectorAll('#history li').length === 3")


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
    tags = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    found = axe.Axe().run(page, options=tags)
    assert found.violations_count == 0, found.generate_report()
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (scheme == "light")


def test_the_live_panel_counts_the_requests_of_this_page(open_page):
    page = open_page("#item=1000")
    page.locator("#live").scroll_into_view_if_needed()
    page.wait_for_selector("#live dd")
    page.click("text=Recommend >> nth=0")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#live div')].some(one => /requests a second\\s+\\d/.test(one.innerText) && "
        "!/\\s0\\.0$/.test(one.innerText.trim()))"
    )


def test_a_title_that_looks_like_html_is_text(open_page):
    page = open_page("#item=1000", refused=True)
    page.fill("#filter", "<img src=x onerror=alert(1)>")
    page.wait_for_selector("#error:not([hidden])")
    assert page.locator("#error img").count() == 0
