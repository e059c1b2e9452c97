"""Pictures of items: from a column of addresses if the server allows their site, or else tiles."""

import numpy as np
import pyarrow as pa
import pytest

from leafbeam.index import Trie
from leafbeam.model import Vocabulary
from leafbeam.serve.exposure import Exposure
from tests.fixtures.shops import small_model, write_shop
from tests.serve.playground.seen import check_accessible, wait_until
from tests.serve.playground.shops import Files, running

pytestmark = pytest.mark.slow

SITE, OTHER = "https://images.example", "https://elsewhere.example"
DRAWING = '<svg xmlns="http://www.w3.org/2000/svg" width="3" height="3"><path d="M0 0h3v3H0z"/></svg>'
ITEMS = [
    {"item_id": 0, "title": "a lamp", "category": "Lamps", "photo": f"{SITE}/lamp"},
    {"item_id": 1, "title": "a cup", "category": "Cups", "photo": f"data:image/svg+xml,{DRAWING}"},
    {"item_id": 2, "title": "a mug", "category": "Cups", "photo": f"{OTHER}/mug.jpg"},
    {"item_id": 3, "title": "a bowl", "category": "Cups", "photo": None},
    {"item_id": 4, "title": "a plate", "category": "Plates & Trays", "photo": f"{SITE}/missing.png"},
]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pictures")
    trie = Trie.build(np.arange(len(ITEMS))[:, None], codebook_sizes=[8], item_ids=range(len(ITEMS)))
    model = small_model(Vocabulary(codebook_sizes=(8,)))
    catalog = write_shop(directory, model, trie, pa.Table.from_pylist(ITEMS), "[rules]\n")
    files = Files(catalog=catalog, model=directory / "model", changes=directory / "live")
    with running(files, exposure=Exposure(pictures=(SITE,))) as server:
        yield server.url


def sources(page):
    """Return the address of the picture of each item of the answer that has loaded, by id."""
    wait_until(page, "() => [...document.querySelectorAll('#with img')].every(one => one.complete && one.naturalWidth)")
    return page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#with .card')].map(c => [c.dataset.id, c.querySelector('img').src]))"
    )


def test_pictures_are_loaded_from_the_allowed_site_alone_and_tiles_stand_for_the_others(visit, url):
    page = visit("about:blank", refused=(404,), blocked=f"{OTHER}/mug.jpg")
    page.route(f"{SITE}/lamp", lambda route: route.fulfill(body=DRAWING, content_type="image/svg+xml"))
    page.route(f"{SITE}/missing.png", lambda route: route.fulfill(status=404))
    reached = []
    page.route(f"{OTHER}/**", lambda route: reached.append(route) or route.abort())
    page.goto(f"{url}/#item=0&leave_out=no")
    page.wait_for_selector("#pictures:not([hidden])")
    found = sources(page)
    assert found["0"] == f"{SITE}/lamp"
    assert found["1"].startswith("data:image/svg+xml,<svg")
    assert len({found[one] for one in "23"}) == 1  # one tile for the category
    assert "%3EC%3C" in found["2"]
    assert "%3EPT%3C" in found["4"]
    assert f'exposure.pictures=["{OTHER}"]' in page.inner_text("#pictures")
    assert reached == []
    assert "http" not in page.locator("#with .card[data-id='0']").inner_text()
    check_accessible(page)
