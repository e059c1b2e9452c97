"""Pictures of the playground, from the demo's shop in a headless Chromium: `python docs/screenshots.py RUN`.

RUN is the directory of `leafbeam demo`. Writes docs/img; prints how long the page took to be usable and to show an answer.
"""

import argparse
import io
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from leafbeam.demo.processes import running_server

OUT = Path(__file__).parent / "img"
COLORS = 128  # of a palette: the page has few, and a third of the bytes is left
WAIT_MS = 60_000


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture of the page: its name, the browser's window, the colours that the user prefers, and how much of it is shown."""

    name: str
    width: int
    height: int
    scheme: str
    show: str = "#request"


PICTURES = (
    Picture(name="playground", width=1280, height=900, scheme="light"),
    Picture(name="playground-dark", width=1280, height=900, scheme="dark", show="#beams"),
    Picture(name="playground-phone", width=360, height=760, scheme="light", show="#answers"),
)


def take(browser: Any, address: str, picture: Picture) -> tuple[bytes, dict[str, float]]:
    """The PNG of a picture, and the milliseconds until the page could be used and had answered."""
    size = {"width": picture.width, "height": picture.height}
    context = browser.new_context(viewport=size, color_scheme=picture.scheme, reduced_motion="reduce", device_scale_factor=1)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(address)
    page.wait_for_selector("#without .card")
    page.wait_for_function("() => performance.getEntriesByName('answered').length === 1")
    page.locator("#live").scroll_into_view_if_needed()
    page.wait_for_selector("#live dd")
    page.evaluate("selector => document.querySelector(selector).scrollIntoView()", picture.show)
    if picture.show == "#request":
        page.evaluate("scrollTo(0, 0)")
    marks = "['interactive', 'answered'].map(name => [name, performance.getEntriesByName(name)[0].startTime])"
    times = dict(page.evaluate(marks))
    png = page.screenshot()
    context.close()
    return png, times


def small(png: bytes) -> bytes:
    """The same picture with a palette, as small as PNG makes it."""
    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    run: Path = parser.parse_args().run
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not installed")
    shown = json.loads((run / "report.json").read_text(encoding="utf-8"))["demo"]["page"]  # the tour's user, under its rules
    OUT.mkdir(exist_ok=True)
    with running_server(run) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture in PICTURES:
            png, times = take(browser, server.address + shown, picture)
            (OUT / f"{picture.name}.png").write_bytes(small(png))
            marks = ", ".join(f"{name} after {milliseconds:.0f} ms" for name, milliseconds in times.items())
            print(f"{picture.name}.png: {len(small(png)):,} bytes; {marks}")
        browser.close()


if __name__ == "__main__":
    main()
