"""Semantic IDs and models of other programs, from their files to answers over HTTP, beside transformers on the same files."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from leafbeam import BeamSearch, Trie
from leafbeam.demo.processes import running_server
from leafbeam.model import PromptTokens, TokenTable, load_model
from leafbeam.semid import SidTable
from tests.fixtures.command_line import succeed

LEVELS = "abc"
PROMPT, SEPARATOR = "<|im_start|> shop history : {history} next", " , "


@dataclass(frozen=True, kw_only=True)
class Theirs:
    """Another program's files: a model of random weights with its tokenizer, an index, items and interactions."""

    folder: Path
    index: dict[str, list[str]]
    tokenizer: Tokenizer
    model: Any
    is_t5: bool

    @property
    def words(self) -> list[str | Path]:
        """Options of the import."""
        words: list[str | Path] = ["--sids", self.folder / "x.index.json", "--model", self.folder / "model"]
        words += ["--items", self.folder / "x.item.json"]
        return words if self.is_t5 else [*words, "--prompt", PROMPT, "--separator", SEPARATOR]

    def prompt(self, history: Sequence[int]) -> list[int]:
        """The tokens of a prompt, as their own code makes it of text."""
        sids = ["".join(self.index[str(item)]) for item in history]
        text = "".join(sids) if self.is_t5 else PROMPT.replace("{history}", SEPARATOR.join(sids))
        return self.tokenizer.encode(text).ids

    @torch.no_grad()
    def scores(self, history: Sequence[int]) -> dict[int, float]:
        """The log probability of each item's SID, where a level's tokens are all that the tokenizer has of it."""
        vocabulary = self.tokenizer.get_vocab()
        rows = {name: sorted(vocabulary[text] for text in vocabulary if text.startswith(f"<{name}_")) for name in LEVELS}
        prompt, found = torch.tensor([self.prompt(history)]), {}
        for item, sid in self.index.items():
            target = torch.tensor([[vocabulary[token] for token in sid]])
            if self.is_t5:
                start = torch.cat([torch.zeros(1, 1, dtype=torch.int64), target[:, :-1]], dim=1)
                logits = self.model(input_ids=prompt, decoder_input_ids=start).logits[0]
            else:
                logits = self.model(torch.cat([prompt, target[:, :-1]], dim=1)).logits[0, prompt.shape[1] - 1 :]
            found[int(item)] = sum(
                float(logits[level][target[0, level]] - logits[level][rows[name]].logsumexp(0))
                for level, name in enumerate(LEVELS)
            )
        return found


def tokenizer_of(tokens: Sequence[str], *, is_t5: bool) -> Tokenizer:
    """Words, then the SID tokens in the order in which LC-Rec and LETTER add them: sorted as text."""
    words = ["<pad>", "</s>", "<unk>", "<|im_start|>", "shop", "history", "next", ":", ","]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", "<|im_start|>"])
    tokenizer.add_tokens(sorted(tokens))
    if is_t5:
        tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def model_of(size: int, kind: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoConfig, AutoModelForCausalLM, T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    if kind == "t5":
        config: Any = T5Config(vocab_size=size, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=4)
        config.decoder_start_token_id = 0
        model: Any = T5ForConditionalGeneration(config)
    else:
        config = AutoConfig.for_model(
            kind, vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=16, max_position_embeddings=128, eos_token_id=1, pad_token_id=0,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4)
    return model.eval()


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("t5", "qwen2", "llama")]


@pytest.fixture(scope="module", params=[*SLOW, "qwen3"])
def theirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Theirs:
    folder, is_t5, rng = tmp_path_factory.mktemp("theirs"), request.param == "t5", np.random.default_rng(0)
    numbers = np.unique(rng.integers(0, [12, 30, 13], (60, 3)), axis=0)[:40]
    index = {str(item): [f"<{name}_{n}>" for name, n in zip(LEVELS, row, strict=True)] for item, row in enumerate(numbers)}
    index["39"] = index["38"]  # they collide
    tokenizer = tokenizer_of([token for sid in {*map(tuple, index.values())} for token in sid], is_t5=is_t5)
    model = model_of(tokenizer.get_vocab_size(), request.param)
    model.save_pretrained(folder / "model")
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    items = {item: {"title": f"thing {item}", "price": int(item) / 2} for item in [*index, "77"] if item != "5"}
    (folder / "x.index.json").write_text(json.dumps(index))
    (folder / "x.item.json").write_text(json.dumps(items))
    rows = [(user, int(item), time) for user in range(20) for time, item in enumerate(rng.choice(39, 6, replace=False))]
    columns = dict(zip(("user_id", "item_id", "timestamp"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), folder / "interactions.parquet")
    return Theirs(folder=folder, index=index, tokenizer=tokenizer, model=model, is_t5=is_t5)


@pytest.fixture(scope="module")
def run(theirs: Theirs) -> Path:
    run = theirs.folder / "run"
    output = succeed("import", *theirs.words, "--data", theirs.folder / "interactions.parquet", "--run", run)
    assert "1 item without a SID left out" in output
    assert "2 items share their SID with another" in output
    assert (
        "items have codes that differ from the numbers in their tokens" in output
    )  # of 30 tokens <b_*>, some belong to no item
    assert output.strip().endswith(f"Next: leafbeam serve --run {run}")
    return run


@pytest.mark.slow
def test_a_server_of_imported_files_answers_as_transformers_scores(theirs: Theirs, run: Path):
    with running_server(run) as server, httpx.Client(base_url=server.address, timeout=120) as client:
        for history in ([], [3], [7, 1, 0, 2]):
            body = {"history": history, "num_items": 12, "num_beams": 64, "keep_history": True, "deadline_ms": 60_000}
            answer = client.post("/v1/recommend", json=body).json()
            truth = theirs.scores(history)
            assert len(answer["item_ids"]) == 12
            np.testing.assert_allclose(answer["scores"], [truth[item] for item in answer["item_ids"]], atol=2e-4)
            np.testing.assert_allclose(answer["scores"], sorted(truth.values(), reverse=True)[:12], atol=2e-4)
        listed, unlisted = (client.get(f"/v1/items/{item}").json()["attributes"] for item in (4, 5))
        assert listed == {"title": "thing 4", "price": 2.0}
        assert unlisted == {"title": None, "price": None}


def test_beam_search_on_the_same_checkpoint_finds_the_same(theirs: Theirs, run: Path):
    vocabulary, history = theirs.tokenizer.get_vocab(), [7, 1, 0]
    names = [sorted(int(t[3:-1]) for t in vocabulary if t.startswith(f"<{name}_")) for name in LEVELS]
    tokens = tuple(tuple(vocabulary[f"<{name}_{n}>"] for n in found) for name, found in zip(LEVELS, names, strict=True))
    numbers = [[int(token[3:-1]) for token in sid] for sid in theirs.index.values()]
    codes = np.array([[found.index(n) for found, n in zip(names, row, strict=True)] for row in numbers])
    around = PromptTokens(after=(1,))
    if not theirs.is_t5:
        around = PromptTokens(before=(3, 4, 5, 7), between=(8,), after=(6,))
    table = TokenTable(tokens_per_level=tokens, size=theirs.model.config.vocab_size, pad=0, bos=1, eos=1, prompt=around)
    model = load_model(theirs.folder / "model", vocabulary=table)
    prompt, lengths = table.prompts([codes[history]])
    assert prompt[0].tolist() == theirs.prompt(history)
    session = model.start(torch.from_numpy(prompt), torch.from_numpy(lengths))
    index = Trie.build(codes, table.codebook_sizes, [int(item) for item in theirs.index])
    mine = BeamSearch(index, num_beams=10).run(session.step_fn, 1)

    sids = SidTable.load(run / "sids.parquet")
    assert sids.codes.tolist() == codes.tolist()
    imported = load_model(run / "model")
    assert imported.vocabulary == table
    session = imported.start(*(torch.from_numpy(array) for array in imported.vocabulary.prompts([codes[history]])))
    found = BeamSearch(Trie.load(run / "index.leafbeam"), num_beams=10).run(session.step_fn, 1)
    assert found.item_ids[0].tolist() == mine.item_ids[0].tolist()
    np.testing.assert_array_equal(found.scores[0], mine.scores[0])


def test_every_other_command_takes_the_run(theirs: Theirs, run: Path):
    assert "thing" in succeed("recommend", "--run", run, "--user", "3", "--channel", "model")
    pq.write_table(pa.table({"user_id": ["u", "v"], "history": [[1, 2], [3]]}), theirs.folder / "users.parquet")
    succeed("recommend", "--run", run, "--users", theirs.folder / "users.parquet", "--out", theirs.folder / "out")
    assert pq.read_table(theirs.folder / "out").num_rows == 2
    assert "recall" in succeed("evaluate", "--run", run, "--users", "10", "--unconstrained", "5").lower()
    assert "is kept as it is" in succeed("build", "--run", run)
    report = json.loads((run / "report.json").read_text())
    assert {"import", "evaluate", "build"} <= set(report)
