"""The directory of a run: what its steps leave in report.json."""

import json
from pathlib import Path

import pytest

from leafbeam.cli.run import RunDirectory
from leafbeam.errors import CheckpointError, DataError


def strict(text: str) -> dict[str, object]:
    """JSON as other languages read it: NaN is none."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def test_steps_stand_beside_each_other_and_a_step_again_replaces_itself(tmp_path: Path):
    run = RunDirectory(tmp_path / "run")
    run.add_to_report("train", {"loss": 1.5})
    run.add_to_report("evaluate", {"recall": 0.5})
    run.add_to_report("train", {"loss": 1.25})
    assert strict(run.report.read_text()) == {"train": {"loss": 1.25}, "evaluate": {"recall": 0.5}}
    assert [path.name for path in run.path.iterdir()] == ["report.json"]


def test_a_report_is_json_that_everybody_reads_even_one_that_held_nan(tmp_path: Path):
    run = RunDirectory(tmp_path)
    run.report.write_text('{"fit-sids": {"unexplained": NaN}}')
    run.add_to_report("train", {"loss": 1.5})
    assert strict(run.report.read_text()) == {"fit-sids": {"unexplained": None}, "train": {"loss": 1.5}}
    with pytest.raises(ValueError, match="JSON"):
        run.add_to_report("evaluate", {"recall": float("nan")})
    assert "evaluate" not in run.read_report()


def test_a_number_beyond_float64_in_a_report_does_not_stop_later_steps(tmp_path: Path):
    run = RunDirectory(tmp_path)
    run.report.write_text('{"train": {"loss": 1e999}}')
    run.add_to_report("evaluate", {})
    assert strict(run.report.read_text()) == {"train": {"loss": None}, "evaluate": {}}


@pytest.mark.parametrize("text", ["{", "[]", '"text"', '{"train": [1]}', '{"train": null}'])
def test_what_is_no_report_is_refused_by_name(tmp_path: Path, text: str):
    run = RunDirectory(tmp_path)
    run.report.write_text(text)
    with pytest.raises(DataError, match=r"report\.json"):
        run.add_to_report("train", {})


def test_a_mistyped_run_is_named_beside_those_that_exist(tmp_path: Path):
    for name in ("shop", "cooking"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "source.json").touch()
    (tmp_path / "notes").mkdir()
    with pytest.raises(CheckpointError) as refused:
        RunDirectory(tmp_path / "cookin").check("sids", "model")
    assert str(refused.value).startswith(f"there is no run {tmp_path / 'cookin'} (--run): ")
    assert str(refused.value).endswith(f"; runs beside it: {tmp_path / 'cooking'}, {tmp_path / 'shop'}")
    with pytest.raises(CheckpointError, match=r"`leafbeam fit-sids --run \S+` begins one$"):
        RunDirectory(tmp_path / "none" / "shop").check("model")
    with pytest.raises(CheckpointError, match="run `leafbeam train --run"):
        RunDirectory(tmp_path / "shop").check("source", "model")
