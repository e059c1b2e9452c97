"""`leafbeam import --recipe`: small checkpoints in the formats of published recommenders, and the answers of their decoding."""

import json
import pickle
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from torch import Tensor, nn

from leafbeam.cli.recipes import RECIPES, RecipeName
from leafbeam.engine import Engine, Request
from leafbeam.index import Trie
from leafbeam.semid import SidTable
from tests.fixtures.command_line import call, succeed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        PreTrainedTokenizerFast,
        T5Config,
        T5EncoderModel,
        T5ForConditionalGeneration,
    )
    from transformers.models.t5.modeling_t5 import T5LayerFF, T5Stack

HISTORY = (7, 1, 30, 2)
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def numbers_of(num_items: int, sizes: Sequence[int]) -> np.ndarray:
    """Codes of items, of which the last two share theirs."""
    drawn = np.random.default_rng(0).integers(0, sizes, (4 * num_items, len(sizes)))
    numbers = np.unique(drawn, axis=0)
    numbers = np.random.default_rng(1).permutation(numbers)[:num_items]
    numbers[-1] = numbers[-2]
    return numbers


def index_of(numbers: np.ndarray, names: Sequence[str]) -> dict[str, list[str]]:
    return {
        str(item): [name.replace("*", str(n)) for name, n in zip(names, row, strict=True)] for item, row in enumerate(numbers)
    }


def qwen_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Bytes, as those of Qwen 2 and 3, with merges of their own."""
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"])
    return tokenizer


def llama_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Blanks as marks and a token at the beginning, as those of the first Llama."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trainer = BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def saved(
    folder: Path, tokenizer: Tokenizer, new_tokens: Sequence[str], make: Callable[[int], Any], **names: str
) -> tuple[Any, Any]:
    """A model of random weights and its tokenizer with added tokens, both saved as their trainers save them."""
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    size = len(fast)
    fast.add_tokens(list(new_tokens))
    torch.manual_seed(0)
    model = make(size)
    model.resize_token_embeddings(len(fast), mean_resizing=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return model.eval(), fast


def decoder_of(kind: str, size: int) -> Any:
    config = AutoConfig.for_model(
        kind, vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


def generated(
    model: Any,
    prompt: list[int],
    allowed: Callable[[list[int]], list[int]],
    *,
    num_beams: int,
    num_tokens: int,
    length_penalty: float = 1.0,
) -> tuple[list[tuple[int, ...]], Tensor]:
    """The sequences of `generate` after a prompt, best first, and the log probabilities of all of their tokens.

    allowed: the tokens after what is generated. length_penalty: the project's; 1 is the default of `generate`, the mean.
    """
    is_decoder = not model.config.is_encoder_decoder
    begin = len(prompt) if is_decoder else 1
    output = model.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        prefix_allowed_tokens_fn=lambda batch, tokens: allowed(tokens[begin:].tolist()),
        max_new_tokens=num_tokens,
        num_beams=num_beams,
        num_return_sequences=num_beams,
        length_penalty=length_penalty,
        output_scores=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    sequences = output.sequences[:, begin:]
    return [tuple(row) for row in sequences.tolist()], output.sequences_scores * sequences.shape[1] ** length_penalty


def after(sequences: Sequence[Sequence[int]], prefix: list[int]) -> list[int]:
    """The tokens that follow a prefix in some sequence: the prefix function of MiniOneRec's and LETTER's tries."""
    return sorted({row[len(prefix)] for row in sequences if list(row[: len(prefix)]) == prefix and len(row) > len(prefix)})


def check(
    run: Path, numbers: np.ndarray, prompt: list[int] | None, theirs: list[tuple[int, ...]], scores: Tensor, recipe: RecipeName,
    num_beams: int | None,
) -> None:  # fmt: skip
    """The top 20 of the imported run are the first SIDs of `theirs`, and what shares them. prompt: its tokens."""
    sids = SidTable.load(run / "sids.parquet")
    with Engine.load(run / "model", Trie.load(run / "index.leafbeam")) as engine:
        if prompt is not None:
            tokens, _ = engine.model.vocabulary.prompts([sids.codes[list(HISTORY)]])
            assert tokens[0].tolist() == prompt
        request = Request(
            history=HISTORY, num_items=20, num_beams=num_beams, scoring=RECIPES[recipe].scoring, keep_history=True
        )
        answer = engine.recommend(request)
    by_sid: dict[tuple[int, ...], list[int]] = {}
    for item, row in enumerate(numbers.tolist()):
        by_sid.setdefault(tuple(row), []).append(item)
    expected = [(item, score) for sid, score in zip(theirs, scores.tolist(), strict=True) for item in by_sid.get(sid, ())][:20]
    assert len(expected) == 20
    assert [item for item, _ in expected] == list(answer.item_ids)
    np.testing.assert_allclose(answer.scores, [score for _, score in expected], atol=1e-3)


def test_mini_onerec(tmp_path: Path):
    names, recipe = RECIPES["mini-onerec"].tokens, RECIPES["mini-onerec"]
    numbers = numbers_of(120, (10, 12, 9))
    index = index_of(numbers, names)
    (tmp_path / "x.index.json").write_text(json.dumps(index))
    (tmp_path / "x.item.json").write_text(json.dumps({item: {"title": f"thing {item}"} for item in index}))
    new = sorted({token for sid in index.values() for token in sid})
    model, fast = saved(
        tmp_path / "model", qwen_tokenizer([recipe.prompt or ""]), new, partial(decoder_of, "qwen2"), eos_token="<|endoftext|>"
    )
    # their instruction and their input are tokenized apart
    instruction, _, ending = (recipe.prompt or "").partition("### User Input")
    history = ", ".join("".join(index[str(item)]) for item in HISTORY)
    prompt = fast.encode(instruction) + fast.encode(f"### User Input{ending}".replace("{history}", history))
    line, end = fast.encode("\n"), fast.eos_token_id
    rows = [[*fast.convert_tokens_to_ids(sid), *line, end] for sid in index.values()]
    model.generation_config.eos_token_id = end
    sequences, scores = generated(
        model, prompt, partial(after, rows), num_beams=20, num_tokens=len(rows[0]), length_penalty=0.0
    )
    sids = {tuple(row[:3]): tuple(numbers[item].tolist()) for item, row in enumerate(rows)}

    succeed(
        "import", "--recipe", "mini-onerec", "--sids", tmp_path / "x.index.json", "--model", tmp_path / "model",
        "--items", tmp_path / "x.item.json", "--run", tmp_path / "run",
    )  # fmt: skip
    check(tmp_path / "run", numbers, prompt, [sids[row[:3]] for row in sequences], scores, "mini-onerec", 20)


def test_letter(tmp_path: Path):
    numbers = numbers_of(120, (6, 7, 5, 4))
    index = index_of(numbers, RECIPES["letter"].tokens)
    (tmp_path / "x.index.json").write_text(json.dumps(index))
    tokenizer = Tokenizer(
        Unigram([("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((chr(n), -2.0) for n in range(97, 123))], 2)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])

    def t5(size: int) -> Any:
        return T5ForConditionalGeneration(
            T5Config(vocab_size=size, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0)
        )

    new = sorted({token for sid in index.values() for token in sid})
    model, fast = saved(tmp_path / "model", tokenizer, new, t5, eos_token="</s>", pad_token="<pad>", unk_token="<unk>")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"architectures": ["LETTER"]}))
    prompt = fast.encode("".join("".join(index[str(item)]) for item in HISTORY))
    rows = [fast.encode("".join(sid)) for sid in index.values()]
    sequences, scores = generated(model, prompt, partial(after, rows), num_beams=20, num_tokens=10)
    sids = {tuple(row[:4]): tuple(numbers[item].tolist()) for item, row in enumerate(rows)}

    succeed(
        "import",
        "--recipe",
        "letter",
        "--sids",
        tmp_path / "x.index.json",
        "--model",
        tmp_path / "model",
        "--run",
        tmp_path / "run",
    )
    check(tmp_path / "run", numbers, prompt, [sids[row[:4]] for row in sequences], scores, "letter", 20)


def test_lc_rec(tmp_path: Path):
    """Their decoding allows any token of a level, and drops what is not an item afterwards: here every sequence has a beam."""
    names, recipe = RECIPES["lc-rec"].tokens, RECIPES["lc-rec"]
    numbers = numbers_of(60, (4, 4, 3, 3))
    index = index_of(numbers, names)
    (tmp_path / "x.index.json").write_text(json.dumps(index))
    new = sorted({token for sid in index.values() for token in sid})
    tokenizer = llama_tokenizer([recipe.prompt or ""])
    model, fast = saved(
        tmp_path / "model", tokenizer, new, partial(decoder_of, "llama"), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    prompt = fast((recipe.prompt or "").format(history=", ".join("".join(index[str(item)]) for item in HISTORY))).input_ids
    rows = [fast.convert_tokens_to_ids(sid) for sid in index.values()]
    levels = [sorted({row[level] for row in rows}) for level in range(4)] + [[fast.eos_token_id]]
    sequences, scores = generated(model, prompt, lambda prefix: levels[len(prefix)], num_beams=144, num_tokens=10)
    sids = {tuple(row): tuple(numbers[item].tolist()) for item, row in enumerate(rows)}

    words = ["--sids", tmp_path / "x.index.json", "--model", tmp_path / "model", "--run", tmp_path / "run"]
    shown = succeed("import", "--recipe", "lc-rec", *words)
    assert 'requests with "scoring": "vocabulary" have the answers of lc-rec' in shown
    check(tmp_path / "run", numbers, prompt, [sids.get(row[:4], ()) for row in sequences], scores, "lc-rec", None)


def onerec_files(folder: Path, numbers: np.ndarray) -> dict[str, Path]:
    """The Semantic IDs of OpenOneRec, as it writes them and as others do."""
    packed: dict[str, list[dict[str, int]]] = {}
    texts: dict[str, list[int]] = {}
    for item, (a, b, c) in enumerate(numbers.tolist()):
        packed.setdefault(str((a * 8192 + b) * 8192 + c), []).append({"pid": item, "count": 3, "count_after_downsample": 1})
        texts.setdefault(f"<|sid_begin|><s_a_{a}><s_b_{b}><s_c_{c}><|sid_end|>", []).append(item)
    (folder / "sid2pid.json").write_text(json.dumps(packed))
    (folder / "sid2iid.json").write_text(json.dumps(packed).replace("pid", "iid"))
    (folder / "texts.json").write_text(json.dumps(texts))
    pq.write_table(pa.table({"pid": range(len(numbers)), "sid": numbers.tolist()}), folder / "pid2sid.parquet")
    return {path.name: path for path in folder.iterdir() if path.is_file()}


def test_open_onerec(tmp_path: Path):
    recipe = RECIPES["open-onerec"]
    numbers = numbers_of(60, (4, 5, 6))
    new = [name.replace("*", str(n)) for name in recipe.tokens for n in range(8)] + ["<|sid_begin|>", "<|sid_end|>"]
    make = partial(decoder_of, "qwen3")
    model, fast = saved(tmp_path / "model", qwen_tokenizer([recipe.prompt or ""]), new, make, eos_token="<|im_end|>")
    items = ["".join(f"<s_{name}_{n}>" for name, n in zip("abc", numbers[item], strict=True)) for item in HISTORY]
    query = "".join(f"<|sid_begin|>{item}<|sid_end|>" for item in items)
    prompt = fast.encode((recipe.prompt or "").replace("<|sid_begin|>{history}<|sid_end|>", query))
    levels = [fast.convert_tokens_to_ids([name.replace("*", str(n)) for n in range(8)]) for name in recipe.tokens]
    sequences, scores = generated(model, prompt, lambda prefix: levels[len(prefix)], num_beams=512, num_tokens=3)
    theirs = [tuple(levels[level].index(token) for level, token in enumerate(row)) for row in sequences]
    digests = set()
    for name, path in onerec_files(tmp_path, numbers).items():
        run = tmp_path / f"run of {name}"
        succeed("import", "--recipe", "open-onerec", "--sids", path, "--model", tmp_path / "model", "--run", run)
        digests.add(SidTable.load(run / "sids.parquet").digest)
    assert len(digests) == 1
    check(tmp_path / "run of sid2pid.json", numbers, prompt, theirs, scores, "open-onerec", None)
    (tmp_path / "sid2pid.json").write_text(json.dumps({str(8192**3): [{"pid": 1}]}))
    refused = call("import", "--recipe", "open-onerec", "--sids", tmp_path / "sid2pid.json", "--run", tmp_path / "no")
    assert "expected a Semantic ID as a number below 549,755,813,888" in " ".join(refused.stderr.split())


class Grid(nn.Module):
    """The modules of GRID's TIGER, under its names: two T5 stacks without embeddings whose feed-forward networks are MLPs."""

    def __init__(self, num_levels: int, num_codes: int) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"vocab_size": 8, "d_model": 24, "num_heads": 3, "d_ff": 32, "d_kv": 8, "num_layers": 2}
        self.model = T5EncoderModel(T5Config(**sizes))
        stack = T5Stack(T5Config(**sizes, is_decoder=True, is_encoder_decoder=False, use_cache=False))
        for module in (self.model, stack):
            for name, child in [*module.named_modules()]:
                if isinstance(child, T5LayerFF):
                    parent, _, attribute = name.rpartition(".")
                    module.get_submodule(parent)[int(attribute)] = GridFeedForward(24, 32)  # type: ignore[index]
        del self.model.shared, self.model.encoder.embed_tokens, stack.embed_tokens
        self.encoder, self.decoder = nn.Module(), nn.Module()
        self.encoder.encoder, self.decoder.decoder = self.model, stack
        self.decoder.bos_token = nn.Parameter(torch.empty(1, 24))
        self.decoder.decoder_mlp = nn.ModuleList(nn.Linear(24, num_codes, bias=False) for _ in range(num_levels))
        self.item_sid_embedding_table_encoder = nn.Embedding(num_levels * num_codes, 24)
        self.sep_token = nn.Parameter(torch.empty(1, 24))
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0, 0.4)
        self.num_codes = num_codes

    @torch.no_grad()
    def scores(self, history: np.ndarray, sids: np.ndarray) -> np.ndarray:
        """The log probability of each SID, each level's over its codebook, by teacher forcing."""
        offsets = torch.arange(history.shape[1]) * self.num_codes
        embedded = self.item_sid_embedding_table_encoder(torch.from_numpy(history) + offsets)
        separator = self.sep_token.expand(len(history), 1, -1)
        prompt = torch.cat([embedded, separator], dim=1).flatten(0, 1)[None]
        encoded = self.model(inputs_embeds=prompt).last_hidden_state.expand(len(sids), -1, -1)
        codes = torch.from_numpy(sids)
        start = self.decoder.bos_token.expand(len(sids), 1, -1)
        inputs = torch.cat([start, self.item_sid_embedding_table_encoder(codes[:, :-1] + offsets[:-1])], dim=1)
        hidden = self.decoder.decoder(inputs_embeds=inputs, encoder_hidden_states=encoded).last_hidden_state
        levels = [head(hidden[:, level]).log_softmax(-1) for level, head in enumerate(self.decoder.decoder_mlp)]
        return sum(values.gather(1, codes[:, [level]])[:, 0] for level, values in enumerate(levels)).numpy()


class GridFeedForward(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.mlp = nn.Module()
        self.mlp.model = nn.Sequential(
            nn.Linear(size, inner),
            nn.ReLU(),
            nn.Linear(inner, inner),
            nn.Dropout(0.0),
            nn.ReLU(),
            nn.Linear(inner, size),
            nn.Dropout(0.0),
        )
        norm = T5LayerFF(T5Config(d_model=size, d_ff=inner)).layer_norm
        self.layer_norm = norm

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.mlp.model(self.layer_norm(hidden))


class Harmful:
    """Part of a checkpoint that would run code."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("harm"),)


def test_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The sizes come from the tensors; no code in the file runs."""
    monkeypatch.chdir(tmp_path)
    numbers = numbers_of(60, (5, 5, 5, 3))
    theirs = Grid(4, 5).eval()
    extras = {"optimizer": partial(torch.optim.Adam, lr=0.1), "path": Path("data"), "harm": Harmful()}
    content = {"state_dict": theirs.state_dict(), "hyper_parameters": extras, "epoch": 3, "callbacks": {"a": {1, 2}}}
    torch.save(content, tmp_path / "checkpoint.ckpt")
    torch.save(torch.from_numpy(numbers).T.contiguous(), tmp_path / "merged_predictions_tensor.pt")
    words = ["--recipe", "grid", "--sids", tmp_path / "merged_predictions_tensor.pt", "--model", tmp_path / "checkpoint.ckpt"]
    succeed("import", *words, "--run", tmp_path / "run")
    assert not Path("harm").exists()
    sids = np.unique(numbers, axis=0)
    scores = theirs.scores(numbers[list(HISTORY)], sids)
    order = np.argsort(-scores)
    ranked = [tuple(sid) for sid in sids[order].tolist()]
    check(tmp_path / "run", numbers, None, ranked, torch.from_numpy(scores[order]), "grid", None)
    refused = call("import", *words, "--tokens", "<a_*>", "--run", tmp_path / "no")
    assert "--tokens: a checkpoint of this recipe already names its tokens" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("users", "has an embedding of users (num_user_bins), which leafbeam does not read"),
        ("separator", "lacks sep_token: expected a checkpoint of GRID's SemanticIDEncoderDecoder"),
        ("other", "has other tensors than a T5 of GRID"),
        ("nan", "holds values that are not finite (NaN, infinity) in shared.weight"),
        ("text", "is damaged, or not a checkpoint of Lightning"),
        ("folder", "is not a file: give the .ckpt that GRID's training has written"),
        ("empty", "holds no tensors by name"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_of_grid_is_said(tmp_path: Path, change: str, message: str):
    state = dict(Grid(2, 5).state_dict())
    path = tmp_path / "x.ckpt"
    if change == "users":
        state["user_embedding.weight"] = torch.zeros(3, 24)
    if change == "separator":
        del state["sep_token"]
    if change == "other":
        state["decoder.decoder.extra.weight"] = torch.zeros(3)
    if change == "nan":
        state["sep_token"] = torch.full((1, 24), torch.nan)
    torch.save({"state_dict": {} if change == "empty" else state}, path)
    if change == "text":
        path.write_bytes(pickle.dumps("text") + b"x")
    if change == "folder":
        path = tmp_path
    torch.save(torch.tensor([[0, 1], [1, 2]]), tmp_path / "sids.pt")
    words = ["--sids", tmp_path / "sids.pt", "--model", path, "--run", tmp_path / "run"]
    refused = call("import", "--recipe", "grid", *words)
    assert message in " ".join(refused.stderr.split()), refused.output
    assert not (tmp_path / "run").exists()
