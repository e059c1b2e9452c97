"""`leafbeam import`: every form of Semantic IDs is read alike, and what is wrong with a file is said."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from leafbeam.cli.foreign_sids import read_sids
from leafbeam.cli.run import RunDirectory, Source
from leafbeam.errors import DataError
from leafbeam.index import Trie
from leafbeam.model import ModelConfig, Transformer, Vocabulary, load_for_decoding, load_model
from leafbeam.semid import SidTable
from tests.fixtures.command_line import call

CODES = [[0, 3], [1, 2], [0, 1]]


def write(path: Path, content: Any) -> Path:
    if isinstance(content, dict | list):
        path.write_text(json.dumps(content))
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def forms(folder: Path) -> dict[str, Path]:
    """The same codes of the items 0, 1 and 2 in every form."""
    tokens = {str(item): [f"<a_{row[0]}>", f"<b_{row[1]}>"] for item, row in enumerate(CODES)}
    rows = [{"item_id": item, "codes": row} for item, row in enumerate(CODES)]
    columns = {"item_id": range(3), "c0": [row[0] for row in CODES], "c1": [row[1] for row in CODES]}
    wide = [{"item_id": item, "c0": row[0], "c1": row[1]} for item, row in enumerate(CODES)]
    lines = "\n".join(["item_id,c0,c1", *(f"{item},{row[0]},{row[1]}" for item, row in enumerate(CODES))])
    pq.write_table(pa.table({**columns, "item_id": list(range(3))}), folder / "table.parquet")
    (folder / "table.csv.gz").write_bytes(gzip.compress(lines.encode()))
    torch.save(torch.tensor(CODES), folder / "grid.pt")
    torch.save(torch.tensor(CODES).T.contiguous(), folder / "transposed.pt")
    torch.save({item: torch.tensor(row) for item, row in enumerate(CODES)}, folder / "mapping.pth")
    np.save(folder / "array.npy", np.array(CODES, np.uint16))
    by_sid = {f"<a_{row[0]}><b_{row[1]}>": [item] for item, row in enumerate(CODES)}
    return {
        "tokens": write(folder / "tokens.json", tokens),
        "matrix": write(folder / "matrix.json", CODES),
        "transposed": write(folder / "transposed.json", np.array(CODES).T.tolist()),
        "by SID": write(folder / "by_sid.json", by_sid),
        "numbers": write(folder / "numbers.json", dict(zip("012", CODES, strict=True))),
        "rows": write(folder / "rows.json", rows),
        "lines": write(folder / "rows.jsonl", "\n".join(map(json.dumps, rows))),
        "columns": write(folder / "columns.jsonl", "\n".join(map(json.dumps, wide))),
        "csv": write(folder / "table.csv", lines),
        **{path.name: path for path in folder.iterdir() if path.suffix in (".parquet", ".gz", ".pt", ".pth", ".npy")},
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("column", "words"), [("item_id", ()), ("sku", ("--item-column", "sku"))])
def test_every_form_makes_the_same_run(tmp_path: Path, column: str, words: tuple[str, ...]):
    """Codes may have `item_id` where the items have another column."""
    items = write(tmp_path / "items.csv", f"{column},title\n0,lamp\n2,desk\n9,sofa\n")
    made = {}
    for name, path in forms(tmp_path).items():
        run = tmp_path / f"run of {name}"
        turned = ["--transposed"] if "transposed" in name else []
        result = call("import", "--sids", path, "--items", items, *words, *turned, "--run", run)
        assert result.exit_code == 0, f"{name}: {result.output}"
        assert "Next:" not in result.stdout, "a run without a model and interactions is not served, nor trained"
        made[name] = SidTable.load(run / "sids.parquet")
        assert Trie.load(run / "index.leafbeam").version == Trie.build(CODES, [2, 4], [0, 1, 2]).version
        assert pq.read_table(run / "imported_items.parquet")["title"].to_pylist() == ["lamp", None, "desk"]
    assert len(made) == 15
    assert len({table.digest for table in made.values()}) == 1
    assert made["tokens"].codes.tolist() == CODES


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "cannot be read as JSON"),
        ("a.json", '{"1": ["<a_1>"], "1": ["<a_2>"]}', "'1' occurs twice"),
        ("a.json", {}, "holds no codes"),
        ("a.json", {"1": []}, "expected a list of tokens or numbers"),
        ("a.json", {"1": None}, "item '1' has the codes None"),
        ("a.json", {"1": ["<a_1>", "<b_2>"], "7": ["<a_1>"]}, "item '7' has 1 code, other items have 2"),
        ("a.json", {"1": ["<a_1>", "<b_2>"], "7": ["<a_1>", "<c_2>"]}, "item '7' has '<c_2>' at level 1, where"),
        ("a.json", {"1": ["<a_1>"], "7": [4]}, "has 4 at level 0, where the first item has <a_*>"),
        ("a.json", {"1": ["<a_1>", 4]}, "tokens at some levels and numbers at others"),
        ("a.json", {"1": ["lamp"]}, "has the code 'lamp'"),
        ("a.json", {"1": [-1]}, "has the code -1"),
        ("a.json", {"1": [True]}, "has the code True"),
        ("a.json", {"1": [1.5]}, "has the code 1.5"),
        ("a.json", {"1": ["<a_1234567890>"]}, "has the code '<a_1234567890>'"),
        ("a.jsonl", '{"item_id": 1, "codes": [1]}\n{"item_id": 1, "codes": [2]}', "item 1 is in line 2 and in an earlier one"),
        ("a.jsonl", '{"item_id": 1, "codes": [1]}\n{"item_id": "b", "codes": [2]}', "has item ids of the types int and str"),
        ("a.jsonl", '{"item_id": null, "codes": [1]}', "line 1 has item_id None"),
        ("a.jsonl", '{"item_id": 1, "codes": [1]}\n{"item_id": 2}', "item 2 has the codes None"),
        ("a.jsonl", "[1]", "expected an object from items to codes"),
        ("a.csv", "item_id,c0\n1,\n2,2\n", "line 2 has no number in c0"),
        ("a.csv", "item_id,c0\n,1\n", "column 'item_id': empty in line 2"),
        ("a.csv", "item_id,c0\n1,-1\n", "codes below 0"),
        ("a.csv", "id,c0\n1,1\n", "--item-column names another column of ids"),
        ("a.csv", "item_id,c0,c2\n1,1,1\n", "no c1"),
        ("a.npy", b"no array", "cannot be read"),
        ("a.pt", b"no tensor", "not a file of tensors that can be read safely"),
        ("a.pkl", pickle.dumps(CODES), "is a pickle, which could run any program"),
        ("a.txt", "1 2", "expected a file of Semantic IDs that ends in"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, name: str, content: Any, message: str):
    result = call("import", "--sids", write(tmp_path / name, content), "--run", tmp_path / "run")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split()), result.stderr
    assert not (tmp_path / "run" / "sids.parquet").exists()


class Harmful:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("harm"),)


def test_a_pickle_under_another_name_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.save(Harmful(), tmp_path / "codes.pt")
    with pytest.raises(DataError, match="read safely"):
        read_sids(tmp_path / "codes.pt")
    torch.save(torch.ones(3, 2), tmp_path / "codes.pt")
    with pytest.raises(DataError, match="expected whole numbers"):
        read_sids(tmp_path / "codes.pt")
    np.save(tmp_path / "codes.npy", np.array([[Harmful()]], object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        read_sids(tmp_path / "codes.npy")
    assert not Path("harm").exists()


def test_ids_have_the_type_of_the_items_or_are_numbers(tmp_path: Path):
    sids = write(tmp_path / "index.json", {"7": [1], "8": [0]})
    pq.write_table(pa.table({"item_id": ["7", "8"]}), tmp_path / "text.parquet")
    for words, expected in (
        ([], [7, 8]),
        (["--text-ids"], ["7", "8"]),
        (["--items", tmp_path / "text.parquet"], ["7", "8"]),
    ):
        run = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        assert call("import", "--sids", sids, *words, "--run", run).exit_code == 0
        assert SidTable.load(run / "sids.parquet").item_ids.tolist() == expected
    other = write(tmp_path / "other.json", {"x": {"title": "lamp"}})
    result = call("import", "--sids", sids, "--items", other, "--run", tmp_path / "run")
    assert "no item of" in " ".join(result.stderr.split())
    twice = write(tmp_path / "twice.jsonl", '{"item_id": 7}\n{"item_id": 7}')
    result = call("import", "--sids", sids, "--items", twice, "--run", tmp_path / "run")
    assert "listed more than once" in " ".join(result.stderr.split())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A Qwen3 directory without leafbeam's files: 10 tokens of text, then <a_0> .. <a_3> and <b_0>, <b_2>, <b_3>."""
    config = ModelConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                         num_key_value_heads=1, head_dim=8)  # fmt: skip
    folder = tmp_path / "model"
    Transformer(config, Vocabulary(codebook_sizes=(4, 4))).save_pretrained(folder)
    for name in ("leafbeam.json", "leafbeam.sha256"):
        (folder / name).unlink(missing_ok=True)
    tokenizer = Tokenizer(WordLevel({f"w{n}": n for n in range(10)}, unk_token="w0"))
    tokenizer.add_tokens(["<a_0>", "<a_1>", "<a_2>", "<a_3>", "<b_0>", "<b_2>", "<b_3>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(
    ("sids", "words", "message"),
    [
        ({"1": ["<a_1>", "<b_1>"]}, ["--prompt", "w1{history}"], "has no token <b_1>, of item '1'"),
        ({"1": ["<a_1>", "<d_1>"]}, ["--prompt", "w1{history}"], "has no tokens <d_*>; numbered ones are <a_*>, <b_*>"),
        ({"1": ["<a_1>", "<b_2>"]}, [], "puts no token around a history"),
        ({"1": ["<a_1>", "<b_2>"]}, ["--prompt", "w1"], "has 0 times {history}"),
        ({"1": [1, 2]}, [], "name the model's tokens of each level with --tokens '<a_*>,<b_*>' (its tokenizer"),
        ({"1": [1, 2]}, ["--tokens", "<a_*>"], "has 2 levels: expected as many --tokens, not 1"),
        ({"1": [1, 2]}, ["--tokens", "<a_*>,<b_>"], "expected one * in the place of the number"),
        ({"1": [1, 2]}, ["--tokens", "<a_*>,<b_*>", "--first-token", "3"], "pass either --tokens"),
        ({"1": [1, 2]}, ["--first-token", "10"], "--first-token needs --codebook-sizes"),
        ({"1": [1, 2]}, ["--first-token", "18", "--codebook-sizes", "4"], "tokens outside the vocabulary of 20"),
        ({"1": [1, 9]}, ["--first-token", "10", "--codebook-sizes", "4"], "code 9 at level 1, whose codebook has 4 codes"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_model_is_said(tmp_path: Path, model: Path, sids: Any, words: list[str], message: str):
    result = call("import", "--sids", write(tmp_path / "x.json", sids), "--model", model, *words, "--run", tmp_path / "run")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split()), result.stderr
    assert not (tmp_path / "run").exists()


def test_tokens_are_named_or_counted_from_the_first(tmp_path: Path, model: Path):
    table = write(tmp_path / "x.json", {"1": [1, 3], "2": [2, 2]})
    words = ["--tokens", "<a_*>,<b_*>", "--prompt", "w5{history}", "--run", tmp_path / "named"]
    shown = call("import", "--sids", table, "--model", model, *words)
    assert "prompts are the tokens 5 HISTORY" in shown.stdout, shown.output
    assert "2 items have codes that differ from the numbers in their tokens" in shown.stdout  # there is no token <b_1>
    named = load_model(tmp_path / "named" / "model")
    assert named.vocabulary.tokens(Trie.load(tmp_path / "named" / "index.leafbeam").codes_of([1, 2])).tolist() == [
        [11, 16],
        [12, 15],
    ]

    words = ["--first-token", "10", "--codebook-sizes", "4,5", "--run", tmp_path / "counted"]
    assert call("import", "--sids", table, "--model", model, *words).exit_code == 0
    counted = load_model(tmp_path / "counted" / "model").vocabulary
    assert counted.tokens([[1, 3], [2, 2]]).tolist() == [[11, 17], [12, 16]]
    assert counted.prompts([[[1, 3]]])[0].tolist() == [[counted.bos, 11, 17]]

    again = call("import", "--sids", table, "--model", tmp_path / "named" / "model", "--run", tmp_path / "again")
    assert (
        "code 3 at level 1, whose codebook has 3 codes" in again.stderr
    )  # leafbeam's own directory has codes, not numbers of names: 3 codes at level 1
    assert "has other Semantic IDs: name another --run" in call(
        "import", "--sids", table, "--run", tmp_path / "named"
    ).stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("file", "settings", "said"),
    [
        ("generation_config.json", {"repetition_penalty": 1.2}, "repetition_penalty=1.2"),
        ("generation_config.json", {"do_sample": True, "top_k": 20, "temperature": 1.0}, "do_sample=True, top_k=20"),
        ("generation_config.json", {"suppress_tokens": [3, 12]}, "suppress_tokens=[3, 12]"),
        ("generation_config.json", {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True}, "length_penalty=2.0"),
        ("generation_config.json", {"forced_eos_token_id": 2, "bad_words_ids": [[1]]}, "forced_eos_token_id=2"),
        ("config.json", {"no_repeat_ngram_size": 3}, "no_repeat_ngram_size=3"),
        ("generation_config.json", {"eos_token_id": 1, "top_k": 20, "temperature": 0.6, "bad_words_ids": [[1]]}, None),
        ("generation_config.json", {"repetition_penalty": 1.0, "do_sample": False, "num_beams": 1}, None),
    ],
)  # fmt: skip
def test_settings_of_generate_that_are_not_applied_are_named(
    tmp_path: Path, model: Path, file: str, settings: dict[str, Any], said: str | None, caplog: pytest.LogCaptureFixture
):
    """G2: none where they change nothing."""
    path = model / file
    write(path, (json.loads(path.read_text()) if path.exists() else {}) | settings)
    words = ["--tokens", "<a_*>,<b_*>", "--prompt", "w5{history}", "--run", tmp_path / "run"]
    shown = call("import", "--sids", write(tmp_path / "x.json", {"1": [1, 3]}), "--model", model, *words)
    assert shown.exit_code == 0, shown.output
    assert (f"sets {said}: leafbeam's search does not apply it" in " ".join(shown.stdout.split())) == (said is not None)
    caplog.clear()
    load_for_decoding(tmp_path / "run" / "model")  # as `serve` does
    assert [f"sets {said}: leafbeam's search" in record.message for record in caplog.records] == [True] * (said is not None)


def test_a_generation_config_that_is_not_an_object_is_refused(tmp_path: Path, model: Path):
    """G2"""
    write(model / "generation_config.json", [1])
    words = ["--tokens", "<a_*>,<b_*>", "--prompt", "w5{history}", "--run", tmp_path / "run"]
    shown = call("import", "--sids", write(tmp_path / "x.json", {"1": [1, 3]}), "--model", model, *words)
    assert "generation_config.json holds a list" in " ".join(shown.stderr.split())
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_log_says_so(tmp_path: Path):
    run = RunDirectory(tmp_path / "run")
    call("import", "--sids", write(tmp_path / "x.json", {"1": [1, 3], "2": [2, 2]}), "--run", run.path)
    assert Source.load(run.source).read_items()["item_id"].to_pylist() == [1, 2]
    for command in ("train", "fit-sids"):
        result = call(command, "--run", run.path)
        assert result.exit_code == 2
        assert "--data" in result.stderr
    assert "so give new items codes" in str(run.load_encoder())


def test_a_log_with_items_that_have_no_sid_is_refused(tmp_path: Path):
    log = write(tmp_path / "log.csv", "user_id,item_id,timestamp\n1,1,1000000000\n1,2,1000000001\n1,9,1000000002\n")
    sids = write(tmp_path / "x.json", {"1": [1, 3], "2": [2, 2], "3": [1, 1]})
    result = call("import", "--sids", sids, "--data", log, "--run", tmp_path / "run")
    assert "1 item of the log has no Semantic ID, the first is 9" in " ".join(result.stderr.split())
    write(log, "user_id,item_id,timestamp\n1,1,1000000000\n1,2,1000000001\n2,1,1000000002\n")
    assert call("import", "--sids", sids, "--data", log, "--run", tmp_path / "run").exit_code == 0
    found = Source.load(tmp_path / "run" / "source.json").read()
    assert (found.item_ids.tolist(), found.histories.items_E.tolist(), found.report.items) == ([1, 2, 3], [0, 1, 0], 3)


def test_the_table_of_items_may_name_its_ids_otherwise_than_the_log(tmp_path: Path):
    log = write(tmp_path / "log.csv", "user_id,product,timestamp\n1,1,1000000000\n1,2,1000000001\n2,1,1000000002\n")
    sids = write(tmp_path / "x.json", {"1": [1, 3], "2": [2, 2]})
    items = write(tmp_path / "items.csv", "sku,title\n1,lamp\n2,desk\n")
    words = ("import", "--sids", sids, "--data", log, "--items", items, "--item-column", "product", "--run", tmp_path / "run")
    refused = call(*words)
    assert (refused.exit_code, "--id-column" in refused.stderr) == (2, True)
    assert call(*words, "--id-column", "sku").exit_code == 0
    log_of_run = Source.load(tmp_path / "run" / "source.json").read()
    assert log_of_run.items["title"].to_pylist() == ["lamp", "desk"]
