"""What notebooks show: small tables, with every text escaped."""

import numpy as np

from leafbeam import BeamSearch, Trie
from leafbeam.html_table import html_table
from leafbeam.index import Version
from leafbeam.live import LiveIndex
from leafbeam.semid.report import LevelReport, SidReport
from leafbeam.train.metrics import Estimate, Ranking, RankingMetrics
from leafbeam.train.report import EvaluationReport, Verdict

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


def test_reports_show_what_their_texts_say() -> None:
    metrics = RankingMetrics.from_ranks(np.array([0, 7, -1, -1]))
    ranking = Ranking(kept=metrics, removed=metrics)
    report = EvaluationReport(
        part="test",
        fit_on="train",
        users=10,
        items=20,
        num_beams=5,
        scoring="full",
        max_items=10,
        trie_version="x",
        rankings={"model": ranking, BAD: ranking},
        verdict=Verdict(best="model", other=BAD, seen="kept", lead=Estimate(mean=0.0, error=1.0)),
        unconstrained=None,
        seconds=1.0,
    )
    shown = report._repr_html_()
    assert "<script" not in shown
    assert "<td>model alone</td>" in shown
    assert shown.count("<tr>") == 1 + report.table().row_count
    level = LevelReport.of(np.array([0, 1, 1]), 4, 0.5)
    sids = SidReport(
        items=3, levels=(level, level), method=BAD, collision_strategy="suffix", distinct_sids=2, distinct_after=3,
        moved_items=1,
        colliding_items=2, largest_group=2, neighbour_overlap=0.5, dims=4, text_columns=("title",), items_without_text=0,
        items_without_behaviour=0,
    )  # fmt: skip
    assert "<script" not in sids._repr_html_()
    assert sids._repr_html_().count("<tr>") == 3
