"""What notebooks show: small tables, with every text escaped."""

import numpy as np

from leafbeam import BeamSearch, Trie
from leafbeam.html_table import html_table
from leafbeam.index import Version
from leafbeam.live import LiveIndex

BAD = "<script>alert(1)</script>"


def test_every_text_of_a_table_is_escaped() -> None:
    shown = html_table(BAD, [BAD, "n"], [[BAD, 1234], [None, True]])
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") == 3
    assert "<td>1,234</td>" in shown
    assert "<td>True</td>" in shown


def test_an_index_shows_its_levels_and_a_filter_its_share() -> None:
    index = Trie.build([[0, 1, 0], [0, 1, 1], [1, 0, 0]], codebook_sizes=[2, 2, 1500], item_ids=["a", "b", BAD])
    shown = index._repr_html_()
    assert shown.startswith(f"<table><caption>Trie {index.version}: 3 items, 3 Semantic IDs</caption>")
    assert "<tr><td>3</td><td>1,500</td><td>3</td>" in shown
    assert "<td>1</td><td>3</td><td>33.33%</td>" in index.filter(item_ids=["a"])._repr_html_()


def test_a_version_shows_its_segments(tmp_path) -> None:
    index = Trie.build([[0, 1], [1, 0]], codebook_sizes=[2, 2], item_ids=["a", "b"])
    with LiveIndex.create(tmp_path / "live", index) as live:
        live.insert([[1, 1]], ["c"])
        live.delete(["a"])
        version = live.version()
        shown = version._repr_html_()
        assert f"Version {version.name}: 2 live items" in shown
        assert "<td>base</td><td>1</td><td>2</td>" in shown
        assert "<td>delta</td><td>1</td><td>1</td>" in shown
        assert "<td>1</td><td>2</td><td>50.00%</td>" in version.filter(item_ids=["c"])._repr_html_()
    assert "delta" not in Version.of(index)._repr_html_()


def test_a_search_result_shows_the_first_items_and_escapes_their_ids() -> None:
    rng = np.random.default_rng(0)
    index = Trie.build(rng.integers(0, 8, (50, 2)), codebook_sizes=[8, 8], item_ids=[f"{BAD}{n}" for n in range(50)])

    def model(codes, parents):
        return rng.normal(size=(6, 8) if codes is None else (*codes.shape, 8))

    result = BeamSearch(index, num_beams=9).run(model, batch_size=6)
    shown = result._repr_html_()
    assert "<script" not in shown
    assert shown.count("<tr>") == 1 + 4 * 5
    assert f"Search result: 6 requests, {int(result.num_valid.sum()):,} items" in shown
    assert f"<td>{'-'.join(map(str, result.codes[0, 0]))}</td>" in shown
    empty = BeamSearch(index, num_beams=3).run(model, batch_size=6, filters=index.filter(item_ids=[]))
    assert empty._repr_html_().count("<tr>") == 1
