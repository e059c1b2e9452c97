"""What a page shows."""

from typing import Any

import pytest

WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def card_ids(page: Any, answer: str = "with") -> list[str]:
    return page.eval_on_selector_all(f"#{answer} .card", "cards => cards.map(card => card.dataset.id)")


def wait_for(page: Any, text: str) -> None:
    page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)


def wait_until(page: Any, condition: str, arg: Any = None) -> None:
    page.wait_for_function(condition, arg=arg)


def wait_for_ids(page: Any, condition: str, arg: Any = None) -> None:
    """Wait until a condition over `ids`, those of the answer, holds."""
    ids = "[...document.querySelectorAll('#with .card')].map(card => card.dataset.id)"
    page.wait_for_function(f"arg => {{ const ids = {ids}; return {condition}; }}", arg=arg)


def check_accessible(page: Any) -> None:
    """Fail for what axe finds against WCAG AA."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = axe.Axe().run(page, options={"runOnly": WCAG})
    assert found.violations_count == 0, found.generate_report()


def tab_to(page: Any, condition: str, tabs: int = 60) -> None:
    """Press Tab until a condition over `it`, the focused element, holds."""
    for _ in range(tabs):
        page.keyboard.press("Tab")
        if page.evaluate(f"() => {{ const it = document.activeElement; return {condition}; }}"):
            return
    raise AssertionError(f"no element within {tabs} tabs has {condition}")
