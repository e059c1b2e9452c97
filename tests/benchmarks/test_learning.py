"""The tables about learning: quick looks that fail when learning breaks, rows, figures, and what they refuse."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.experiments import learning_table
from benchmarks.learning import as_dict, kept_learning_rows, pooled
from benchmarks.static.table_3 import TEACHERS
from benchmarks.studies.cold_split import cold_split
from benchmarks.studies.cold_start_study import METHODS
from leafbeam.datasets import make_shop
from leafbeam.train import LogRules, RankingMetrics, load_log

pytestmark = pytest.mark.slow

DATA = Path(os.environ.get("LEAFBEAM_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shop")
    make_shop(num_items=800, num_users=2000, seed=0).save(place)
    return place


def rows_of(*arguments: str | Path) -> list[dict[str, Any]]:
    """The rows of a quick run of `python -m benchmarks NAME`."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--quick", "--json"])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def recall(row: dict[str, Any], method: str, k: int = 10) -> float:
    found = row["measured"]["methods"][method]
    return found.get("all", found)[f"recall_{k}"]["mean"]


def check_cold(row: dict[str, Any], *, taught: bool = False) -> None:
    """What holds of any table 3 in which something was learnt. taught: the model has drawn new items in training."""
    split, seen_kept = row["measured"]["split"], row["measured"]["seen_kept"]
    chance = 10 / split["cold_items"]
    if not taught:
        assert recall(row, "unconstrained") < chance
        assert recall(row, "catalog") < chance
    assert recall(row, "trie_full") > 1.3 * chance
    assert recall(row, "hybrid") > 1.6 * chance
    # Twenty beams of a small set find nearly what scoring every item finds.
    assert abs(recall(row, "trie_allowed") - recall(row, "exact_allowed")) < 0.1
    assert seen_kept["exact_full"]["recall_10"]["mean"] <= recall(row, "exact_full")
    assert split["test_users"] > split["test_users_with_another_cold_item"] > 0


def test_table_3_of_a_made_shop(shop: Path, tmp_path: Path):
    kinds = "--sids", "kmeans", "--sids", "rqvae", "--teacher", "text"
    rows = rows_of("static-table-3", "--data", shop, "--share", "0.15", *kinds, "--out", tmp_path)
    at = [row["parameters"] for row in rows]
    assert [(one["share"], one["sids"], one["teacher"]) for one in at] == [(0.15, "kmeans", "text"), (0.15, "rqvae", "text")]
    for row in rows:
        check_cold(row, taught=True)
    assert at[0]["taught"] == asdict(TEACHERS["text"])
    assert (tmp_path / "static-table-3.png").stat().st_size > 10_000


def test_table_3_of_validation_items_holds_out_others_than_the_test_s(shop: Path):
    kinds = "--share", "0.15", "--sids", "kmeans", "--teacher", "none"
    (row,) = rows_of("static-table-3", "--data", shop, "--part", "valid", *kinds)
    assert row["parameters"]["part"] == "valid"
    log = load_log(shop, rules=LogRules(unseen="drop"))
    valid, test = (cold_split(log, share=0.15, part=part) for part in ("valid", "test"))
    assert row["measured"]["split"] == asdict(valid.report) != asdict(test.report)
    assert not (valid.cold_N & test.cold_N).any()


def test_what_other_ways_lose_under_a_rule(shop: Path, tmp_path: Path):
    rows = rows_of("exactness", "--data", shop, "--out", tmp_path)
    assert [row["parameters"]["sids"] for row in rows] == ["leafbeam", "TIGER"]
    for row in rows:
        found = row["measured"]["by_method"]
        lost = {(share, name): one["lost"]["mean"] for name in found for share, one in found[name]["20"].items()}
        assert {lost[share, "leafbeam"] for share in ("1", "0.1", "0.01", "0.001")} == {0}
        assert lost["0.1", "post_filter"] > 0.5 > lost["1", "post_filter"]
        assert lost["0.1", "top_k_then_mask"] > 0.2
        assert lost["0.01", "last_level"] > 0.2
        served, alone = (found[name]["20"]["0.01"]["lost_best"]["mean"] for name in ("served", "leafbeam"))
        assert served == 0 <= alone
        post = found["post_filter"]["20"]["0.1"]
        assert post["forbidden"]["mean"] + post["no_item"]["mean"] > 0.5
    assert (tmp_path / "exactness.png").stat().st_size > 10_000


@pytest.mark.full
def test_tiger_s_table_of_a_made_shop(shop: Path, tmp_path: Path):
    (row,) = rows_of("tiger-table-1", "--data", shop, "--out", tmp_path)
    assert recall(row, "leafbeam") > 1.5 * recall(row, "popularity")
    assert recall(row, "sasrec") > 1.5 * recall(row, "popularity")
    assert row["measured"]["invalid"]["mean"] < 0.5
    assert (tmp_path / "tiger-table-1.png").stat().st_size > 10_000


@pytest.mark.full
@pytest.mark.data
def test_table_3_of_beauty():
    if not (DATA / "amazon_beauty").is_dir():
        pytest.skip("amazon_beauty is not beside the checkout, and LEAFBEAM_DATA does not name it")
    kinds = "--sids", "leafbeam", "--teacher", "none"
    (row,) = rows_of("static-table-3", "--data", DATA / "amazon_beauty", "--share", "0.02", *kinds)
    check_cold(row)
    assert recall(row, "dense") > 0.9 * recall(row, "text_faded")
    assert recall(row, "hybrid") > 0.9 * recall(row, "text")


@pytest.mark.full
@pytest.mark.data
def test_tiger_s_table_of_beauty():
    if not (DATA / "amazon_beauty").is_dir():
        pytest.skip("amazon_beauty is not beside the checkout, and LEAFBEAM_DATA does not name it")
    (row,) = rows_of("tiger-table-1", "--data", DATA / "amazon_beauty")
    assert recall(row, "leafbeam") > 1.15 * recall(row, "popularity")
    assert recall(row, "sasrec") > 1.15 * recall(row, "popularity")


def test_rows_are_kept_by_data_share_and_seed_and_drawn_anew(shop: Path, tmp_path: Path):
    table = learning_table("static-table-3")
    assert table is not None
    figures = as_dict(RankingMetrics.from_ranks(np.array([0, 3, 40])))
    measured = {
        "split": {"cold_items": 9, "test_users": 3, "test_users_with_another_cold_item": 1, "train_users": 5},
        "methods": {name: {"all": figures} for name in METHODS},
        "seen_kept": {},
        "search": {"exact_rows": 3, "beam_rows": 2},
    }
    path = tmp_path / "static_table_3.jsonl"
    for seed, quick, note in ((0, False, "old"), (0, False, "new"), (1, False, ""), (0, True, "")):
        at = {"data": "amazon_beauty", "share": 0.02, "seed": seed, "quick": quick, "note": note}
        row = table.row({**at, "budget": "8 epochs", "dense_epochs": 4}, measured)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
    rows = kept_learning_rows(table, False, tmp_path)
    assert [(row["parameters"]["seed"], row["parameters"]["note"]) for row in rows] == [(0, "new"), (1, "")]
    table.draw(rows).savefig(tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 10_000


def test_seeds_share_their_users_so_their_errors_do_not_shrink():
    one = {"mean": 0.1, "error": 0.01}
    assert pooled([one]) == pytest.approx((0.1, 0.01))
    assert pooled([one, one, one]) == pytest.approx((0.1, 0.01))
    assert pooled([one, {"mean": 0.2, "error": 0.01}]) == pytest.approx((0.15, np.sqrt(0.01**2 + 0.005 / 2)))
