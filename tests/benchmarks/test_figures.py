"""Numbers in documents come from rows: the documents are current, and what is stale, ambiguous or missing is said by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.figures.command import stale, stray
from benchmarks.figures.definition import Definitions
from benchmarks.figures.document import differences, filled, stray_numbers
from benchmarks.figures.markdown import provenance, render
from benchmarks.figures.plots import PLOTS
from benchmarks.figures.selection import ResultRows
from benchmarks.rows import Row, keep_row, make_row, refusal
from benchmarks.tiger.field import FIELD
from leafbeam.errors import DataError

TABLE = """
[speed]
bench = "step"
commands = ["step"]
corner = "one round"
field = "us"
format = "{p50:,.0f}"
columns = [{ name = "small", where = { items = 10 } }, { name = "large", where = { items = 1000 } }]
lines = [{ name = "ours", field = "ours" }, { name = "peer", field = "peer", missing = "left out" }]

[ratio]
bench = "step"
text = "{ratio}"
values.ratio = { where = { items = 10 }, field = "us/peer/p50", over = "us/ours/p50", format = "{:.1f}x" }
"""


def row(items: int, ours: float, time: str = "2026-01-02T00:00:00Z", **other: Any) -> Row:
    return {
        "bench": "step",
        "time": time,
        "commit": "abc",
        "machine": {"cpu": "CPU", "cores": 2, "load": 1.0},
        "versions": {"torch": "2", "numba": "1"},
        "parameters": {"items": items},
        "measured": {"us": {"ours": {"p50": ours}} | ({"peer": {"p50": 4 * ours}} if items < 100 else {})},
    } | other


def read(tmp_path: Path, *rows: Row) -> ResultRows:
    (tmp_path / "step.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return ResultRows.read(tmp_path)


@pytest.fixture
def definitions(tmp_path: Path) -> Definitions:
    file = tmp_path / "figures.toml"
    file.write_text(TABLE)
    return Definitions.read(file)


def test_the_documents_say_what_their_rows_say() -> None:
    assert [str(problem) for problem in stale(ResultRows.read())] == []


def test_every_number_of_the_readme_and_of_the_results_comes_from_a_row() -> None:
    assert [str(problem) for problem in stray()] == []


def test_what_others_report_has_an_ndcg_below_its_recall_a_protocol_and_a_source() -> None:
    for name, entry in FIELD.items():
        pairs = [pair for data in ("beauty", "sports", "toys") if isinstance(pair := entry[data], tuple)]
        assert any(recall is not None for recall, _ in pairs), name
        assert all(0.4 * recall < ndcg < recall < 0.2 for recall, ndcg in pairs if recall and ndcg), name
        assert entry["seen"] in {"kept", "removed", "not said", "not known"}, name
        assert entry["validation"] in {"yes", "no", "not said", "not known"}, name
        assert entry["source"], name


def test_the_newest_row_that_is_not_refused_wins(tmp_path: Path, definitions: Definitions) -> None:
    busy = {"cpu": "CPU", "cores": 2, "load": 2.5}
    rows = read(
        tmp_path,
        row(10, 1000.0),
        row(10, 2000.0, "2026-01-03T00:00:00Z"),
        row(10, 9000.0, "2026-01-04T00:00:00Z", machine=busy),
        row(10, 9000.0, "2026-01-05T00:00:00Z", dirty=True),
        row(10, 9000.0, "2026-01-06T00:00:00Z", commit="abc+"),
        row(1000, 3000.0, machine=busy, marked="counts only"),
    )
    assert len(rows.refused) == 3
    text = render(definitions, "speed", rows)
    assert "| ours | 2,000 | 3,000 |" in text
    assert "| peer | 8,000 | left out |" in text
    assert text.endswith("Marked: counts only.*")
    assert render(definitions, "ratio", rows) == "4.0x"


def test_rows_without_a_load_are_shown_with_that_remark() -> None:
    assert "no load recorded for 1 of 2 rows" in provenance([row(10, 1.0), row(10, 1.0, machine={"cpu": "CPU"})], ["step"])


def test_rows_that_know_of_other_programs_are_judged_by_these() -> None:
    quiet, busy = ({"cpu": "CPU", "cores": 2, "load": 2.5, "others": others} for others in (0.1, 0.8))
    assert refusal(row(10, 1.0, machine=quiet)) == ""
    assert "other programs used 0.8 of 2 cores" in refusal(row(10, 1.0, machine=busy))
    text = provenance([row(10, 1.0, machine=quiet), row(10, 1.0, machine=busy), row(10, 1.0)], ["step"])
    assert "other programs 0.1 to 0.8 cores; load 1.0;" in text


def test_a_missing_row_and_an_ambiguous_one_are_errors_with_the_figure_and_the_place(
    tmp_path: Path, definitions: Definitions
) -> None:
    with pytest.raises(DataError, match=r"figure 'speed', line 'ours', column 'large': no row of 'step' has .*'items': 1000"):
        render(definitions, "speed", read(tmp_path, row(10, 1.0)))
    with pytest.raises(DataError, match=r"figure 'ratio', value 'ratio': .* refused: .* load was 9"):
        render(definitions, "ratio", read(tmp_path, row(10, 1.0, machine={"cpu": "CPU", "cores": 2, "load": 9})))
    other = row(10, 1.0, parameters={"items": 10, "beams": 4})
    rows = read(tmp_path, other, row(10, 1.0, parameters={"items": 10, "beams": 8}))
    for call, message in (
        (lambda: render(definitions, "ratio", rows), r"ambiguous among rows of 'step': they differ in \{'beams': \(4, 8\)\}"),
        (lambda: render(definitions, "speeed", rows), "no figure is called 'speeed'"),
        (lambda: render(definitions, "speed", read(tmp_path, row(10, 1.0, measured={}))), "there is no 'us/ours'"),
    ):
        with pytest.raises(DataError, match=message):
            call()


FULL = """
[speed]
bench = "step"
commands = ["step"]
corner = "ten items"
where = { quick = false }
until_then = { corner = "one item", where = { quick = true } }
columns = [{ name = "peer", field = "us/peer/p50", format = "{:.0f}", missing = "left out", reasons = "left_out" }]
lines = [{ name = "ours" }]
"""


SEEDS = """
[recall]
bench = "step"
corner = "recall, %"
where = { items = 10 }
pool = { seed = [0, 1] }
scale = 100
format = "{mean:.1f} ± {error:.1f}"
columns = [{ name = "at 1", field = "recall" }]
lines = [{ name = "two seeds", missing = "not measured" }, { name = "one", pool = { seed = [1] } }]
"""


def test_a_cell_of_several_seeds_pools_all_of_them_or_none(tmp_path: Path) -> None:
    file = tmp_path / "figures.toml"
    file.write_text(SEEDS)
    definitions = Definitions.read(file)
    first, second = (
        row(10, 1.0, parameters={"items": 10, "seed": seed}, measured={"recall": {"mean": mean, "error": 0.03}})
        for seed, mean in ((0, 0.5), (1, 0.6))
    )
    assert "| two seeds | not measured |\n| one | 60.0 ± 3.0 |" in render(definitions, "recall", read(tmp_path, second))
    both = render(definitions, "recall", read(tmp_path, first, second))
    assert "| two seeds | 55.0 ± 5.8 |\n| one | 60.0 ± 3.0 |" in both  # sqrt(.03^2 + .1^2 / 2 / 2)


BESIDE = """
[speed]
bench = "step"
corner = "one round"
scale = 1e-3
format = "{p50:.2f}"
beside = " ({mean:.2f} ± {sd:.2f})"
columns = [
  { name = "here", where = { items = 10 }, field = "us" },
  { name = "paper", published = "static-4a/100000", field = "published", scale = 1, format = "+{:.3f} ± {:.3f}" },
]
lines = [
  { name = "ours", field = "ours", part = "static" },
  { name = "new", field = "new", missing = "not measured", optional = true },
]
"""


def test_a_cell_shows_mean_and_deviation_where_its_record_has_them(tmp_path: Path) -> None:
    file = tmp_path / "figures.toml"
    file.write_text(BESIDE)
    definitions = Definitions.read(file)
    of_before, of_now = (
        row(10, 1.0, measured={"ours": {"us": spread}}) for spread in ({"p50": 500}, {"p50": 500, "mean": 620.0, "sd": 40.0})
    )
    assert "| ours | 0.50 | +0.023 ± 0.008 |" in render(definitions, "speed", read(tmp_path, of_before))
    assert "| ours | 0.50 (0.62 ± 0.04) | +0.023 ± 0.008 |" in render(definitions, "speed", read(tmp_path, of_now))
    assert "| new |" not in render(definitions, "speed", read(tmp_path, of_now))
    with_new = row(10, 1.0, measured={name: {"us": {"p50": 500}} for name in ("ours", "new")})
    assert "| new | 0.50 | not measured |" in render(definitions, "speed", read(tmp_path, with_new))


def test_a_table_shows_small_runs_until_there_are_full_ones(tmp_path: Path) -> None:
    file = tmp_path / "figures.toml"
    file.write_text(FULL)
    definitions = Definitions.read(file)
    small, full = (row(10, 5.0, parameters={"quick": quick}) for quick in (True, False))
    assert "| one item | peer |\n| --- | ---: |\n| ours | 20 |" in render(definitions, "speed", read(tmp_path, small))
    assert "| ten items | peer |" in render(definitions, "speed", read(tmp_path, small, full))


def test_writing_twice_changes_nothing_and_code_is_left_alone(tmp_path: Path, definitions: Definitions) -> None:
    rows = read(tmp_path, row(10, 1.0), row(1000, 2.0))
    document = (
        "A peer takes <!-- figure: ratio --><!-- end figure --> as long.\n\n<!-- figure: speed --><!-- end figure -->\n\n"
        "```\n<!-- figure: unknown --><!-- end figure -->\n```\n"
    )
    once = filled(document, lambda name: render(definitions, name, rows))
    assert "A peer takes <!-- figure: ratio -->4.0x<!-- end figure --> as long." in once
    assert "<!-- figure: speed -->\n\n| one round |" in once
    assert once.endswith("<!-- figure: unknown --><!-- end figure -->\n```\n")
    assert filled(once, lambda name: render(definitions, name, rows)) == once
    assert differences("a.md", once, lambda name: render(definitions, name, rows)) == []


def test_a_number_that_was_changed_by_hand_is_found_with_file_line_and_name(tmp_path: Path, definitions: Definitions) -> None:
    rows = read(tmp_path, row(10, 1.0), row(1000, 2.0))
    document = filled("# Title\n\n<!-- figure: speed --><!-- end figure -->\n", lambda name: render(definitions, name, rows))
    (problem,) = differences(
        "a.md", document.replace("| ours | 1 |", "| ours | 7 |"), lambda name: render(definitions, name, rows)
    )
    assert str(problem).startswith("a.md:3: figure 'speed' differs from its rows")
    assert "'| ours | 7 | 2 |', the rows give '| ours | 1 | 2 |'" in problem.message


def test_marks_without_a_partner_and_numbers_that_begin_a_line_are_found(definitions: Definitions) -> None:
    found = differences("a.md", "one\n<!-- figure: Speed -->1<!-- end figure -->\n", lambda name: "1")
    assert [problem.line for problem in found] == [2, 2]
    (problem,) = differences("a.md", "one\n<!-- figure: speed -->1<!-- end figure --> two\n", lambda name: "1")
    assert "begins a line" in problem.message


@pytest.mark.parametrize(
    "text",
    ["takes 12 ms", "is 3.4x as fast", "recall 0.067", "holds 14 bytes", "99 % of them", "1,050 µs", "4.2 GB", "NDCG .0384"],
)
def test_a_number_with_a_unit_outside_a_figure_is_found(text: str) -> None:
    (problem,) = stray_numbers("a.md", f"Fine.\n\nIt {text}.\n", [])
    assert str(problem).startswith("a.md:3: ")


def test_counts_code_links_figures_and_settings_are_no_stray_numbers() -> None:
    text = (
        "10^6 items of 8 codes, 2 x 70 beams, [a](b-0.5.md) `--slo-ms 0.5`\n```\n1.5 ms\n```\n"
        "<!-- figure: a -->12 ms<!-- end figure --> within 200 ms\n"
    )
    assert stray_numbers("a.md", text, ["within 200 ms"]) == []
    (problem,) = stray_numbers("a.md", text, ["within 200 ms", "within 300 ms"])
    assert "'within 300 ms'" in problem.message


def test_a_plot_of_other_rows_is_not_current(tmp_path: Path) -> None:
    rows, plot = ResultRows.read(), PLOTS[0]
    assert not plot.is_current(tmp_path, rows)
    assert plot.write(tmp_path, rows)
    assert plot.is_current(tmp_path, rows)
    assert not plot.write(tmp_path, rows)
    changed = tuple(
        json.loads(json.dumps(each).replace("p50", "p51")) if each["bench"] == "reproduce" else each for each in rows.rows
    )
    assert not plot.is_current(tmp_path, ResultRows(rows=changed, refused=()))


def test_a_refused_row_is_kept_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = make_row("x", {}, {})
    assert {"commit", "dirty", "time", "timed", "machine", "versions"} <= kept.keys()
    assert {"cpu", "cores", "load"} <= kept["machine"].keys()
    idle = {"cpu": "CPU", "cores": 2, "load": 0.0}
    quiet = kept | {"commit": "abc", "dirty": False, "machine": idle}
    keep_row("x", quiet, tmp_path)
    assert capsys.readouterr().err == ""
    busy = quiet | {"machine": idle | {"load": 1000.0}}
    keep_row("x", busy, tmp_path)
    assert "refuses this row of x: the load was 1000.0" in capsys.readouterr().err
    assert refusal(busy | {"timed": False}) == refusal(busy | {"marked": "why"}) == ""
    assert "changes" in refusal(quiet | {"dirty": True, "timed": False})
    assert refusal(quiet | {"superseded": "x has another y", "marked": "why"}) == "superseded: x has another y"
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("name", ["static-table-3", "tiger-table-1", "exactness", "static-memory", "xgr-figure-18"])
def test_kept_rows_are_shown_again(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--redraw"])
    assert result.exit_code == 0, result.output
    assert "leafbeam" in result.output or "trie of the whole catalog" in result.output
