"""Pages of the playground in a headless Chromium. Nothing may fail in one but what a test names."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.serve.running import thread

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(first_shop: Any) -> Iterator[str]:
    """A server of a shop that takes no changes."""
    with thread(first_shop.engine()) as server:
        yield server.url


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens an address; refused: statuses of failures that the page asks for, which the browser reports too; blocked: a site
    of pictures that the browser reports as not allowed."""
    contexts: list[Any] = []
    errors: list[str] = []

    def visit(url: str, *, refused: tuple[int, ...] = (), blocked: str = "", **options: Any) -> Any:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(20_000)
        page = context.new_page()

        def on_console(message: Any) -> None:
            statuses = [f"status of {status}" for status in refused] + ([f"the image '{blocked}"] if blocked else [])
            stopped = "net::ERR_CONNECTION_REFUSED"  # the test ended before its page did
            expected = any(text in message.text for text in (*statuses, stopped))
            if message.type in ("error", "warning") and not expected:
                errors.append(message.text)

        page.on("console", on_console)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def open_page(visit: Callable[..., Any], address: str) -> Callable[..., Any]:
    """Opens the playground of the shop that takes no changes, or of `at`, and waits for an answer."""

    def open_at(fragment: str = "", *, at: str = "", refused: bool = False, **options: Any) -> Any:
        page = visit(f"{at or address}/{fragment}", refused=(422,) if refused else (), **options)
        page.wait_for_selector("#summary:not(:empty)")
        return page

    return open_at
