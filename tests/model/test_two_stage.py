"""Text first, then SIDs: the search after the text equals a search whose prompt holds the text."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

from leafbeam.decode import BeamSearch
from leafbeam.engine import Engine, Request, Settings
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie
from leafbeam.model import ModelConfig, TokenTable, Transformer, TwoStage

SIZES = (6, 5, 4)
WORDS = ["<pad>", "<s>", "</s>", "the", "user", "likes", "wants", "red", "blue", "shoes", "hats", "and", "then", "so", "<sid>"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Words, and behind them the tokens of the SIDs, as one adds them to a language model's tokenizer."""
    made = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))  # type: ignore[call-arg]
    made.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    made.add_tokens([f"<{level}_{code}>" for level, size in enumerate(SIZES) for code in range(size)])
    return made


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Transformer:
    table = TokenTable.behind(len(WORDS), SIZES, size=tokenizer.get_vocab_size(), pad=0, bos=1, eos=2)
    config = ModelConfig(
        vocab_size=table.size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=48,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    return Transformer(config, table, torch.Generator().manual_seed(5)).eval()


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Three prompts of words and SIDs, of different lengths, with arbitrary tokens as padding."""
    texts = ["<s> the user likes <0_1> <1_2> <2_3> and <0_5> <1_4> <2_0>", "<s> red shoes", "<s>"]
    rows = [tokenizer.encode(text).ids for text in texts]
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.full((3, int(lengths.max())), 9)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = torch.tensor(row)
    return tokens, lengths


def trie() -> Trie:
    codes = np.unique(np.random.default_rng(3).integers(0, SIZES, (50, 3)), axis=0)
    return Trie.build(codes, codebook_sizes=SIZES)


def greedy(model: Transformer, prompt: list[int], max_tokens: int, marker: int | None) -> list[int]:
    """One row, no cache: the whole sequence anew for each token."""
    text: list[int] = []
    while len(text) < max_tokens and (not text or text[-1] != marker):
        with torch.no_grad():
            text.append(int(model.logits(model(torch.tensor([prompt + text]))[0, -1]).argmax()))
    return text if marker is None or text[-1] == marker else [*text, marker]


def likely_marker(model: Transformer, prompts: tuple[Tensor, Tensor]) -> int:
    """A token that some rows write early and others do not."""
    texts = TwoStage(model=model, max_tokens=8).generate(*prompts).texts
    early = [token for token in texts[0][:5] if token not in texts[1]]
    return (early or list(texts[0][:1]))[0]


@pytest.mark.parametrize("marked", [False, True])
def test_each_row_generates_the_text_it_would_alone(
    model: Transformer, prompts: tuple[Tensor, Tensor], marked: bool, poisoned: None
):
    tokens, lengths = prompts
    marker = likely_marker(model, prompts) if marked else None
    generated = TwoStage(model=model, max_tokens=8, marker=marker).generate(tokens, lengths)
    for row, (length, text) in enumerate(zip(lengths.tolist(), generated.texts, strict=True)):
        prompt = tokens[row, :length].tolist()
        assert list(text) == greedy(model, prompt, 8, marker)
        assert int(generated.lengths_B[row]) == length + len(text)
        assert generated.tokens_BT[row, : length + len(text)].tolist() == prompt + list(text)
    assert generated.tokens_BT.shape[1] == int(generated.lengths_B.max())
    assert not marked or len({len(text) for text in generated.texts}) > 1  # rows end at different times


def test_transformers_generates_the_same_text(model: Transformer, prompts: tuple[Tensor, Tensor], tmp_path: Path):
    from transformers import Qwen3ForCausalLM

    model.save_pretrained(tmp_path)
    theirs = Qwen3ForCausalLM.from_pretrained(tmp_path).eval()
    tokens, lengths = prompts
    row = tokens[:1, : int(lengths[0])]
    found = theirs.generate(row, attention_mask=torch.ones_like(row), do_sample=False, max_new_tokens=8, eos_token_id=-1)
    (text,) = TwoStage(model=model, max_tokens=8).generate(row).texts
    assert found[0, row.shape[1] :].tolist() == list(text)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_search_after_the_text_equals_one_on_prompt_and_text(
    model: Transformer, prompts: tuple[Tensor, Tensor], temperature: float
):
    two = TwoStage(model=model, max_tokens=6, marker=WORDS.index("<sid>"), temperature=temperature, seed=4)
    generated = two.generate(*prompts)
    assert all(text[-1] == WORDS.index("<sid>") for text in generated.texts)
    search = BeamSearch(trie(), num_beams=7)
    session = two.start(*prompts)
    found = search.run(session.step_fn, batch_size=3, suffix_fn=session.suffix_fn)
    for row, (length, text) in enumerate(zip(prompts[1].tolist(), generated.texts, strict=True)):
        whole = torch.tensor([prompts[0][row, :length].tolist() + list(text)])
        alone = search.run(model.start(whole).step_fn)
        assert alone.item_ids[0].tolist() == found.item_ids[row].tolist()
        np.testing.assert_allclose(alone.scores[0], found.scores[row], atol=1e-5)


def test_sampling_follows_the_seed_and_the_temperature(model: Transformer, prompts: tuple[Tensor, Tensor]):
    texts = [TwoStage(model=model, max_tokens=8, temperature=2.0, seed=seed).generate(*prompts).texts for seed in (1, 1, 2)]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    greedy = TwoStage(model=model, max_tokens=8).generate(*prompts).texts
    for cold in (1e-4, 1e-320):
        assert TwoStage(model=model, max_tokens=8, temperature=cold, seed=1).generate(*prompts).texts == greedy


def test_an_engine_accepts_a_two_stage_model(model: Transformer):
    index = trie()
    two = TwoStage(model=model, max_tokens=5)
    requests = [Request(history=(3, 8), num_items=5, keep_history=True), Request(num_items=5)]
    answers = Engine(two, index, settings=Settings(num_beams=5, widest_beams=0)).recommend(requests)
    for request, answer in zip(requests, answers, strict=True):
        history = index.codes_of(list(request.history)) if request.history else np.zeros((0, 3), np.int64)
        tokens, lengths = model.vocabulary.prompts([history])
        session = two.start(torch.from_numpy(tokens), torch.from_numpy(lengths))
        alone = BeamSearch(index, num_beams=5).run(session.step_fn)
        assert list(answer.item_ids) == alone.item_ids[0].tolist()


def test_no_prompts_generate_no_text(model: Transformer):
    generated = TwoStage(model=model, max_tokens=3).generate(torch.zeros(0, 4, dtype=torch.int64))
    assert generated.texts == ()
    assert generated.tokens_BT.shape[0] == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 0}, "at least one token"),
        ({"max_tokens": 46}, "no room for a SID"),
        ({"max_tokens": 60}, "leaves a prompt no room"),
        ({"max_tokens": 4, "marker": 1000}, "outside the model's"),
        ({"max_tokens": 4, "temperature": -1.0}, "at least 0 and finite"),
        ({"max_tokens": 4, "temperature": float("nan")}, "at least 0 and finite"),
    ],
)
def test_impossible_settings_are_refused(model: Transformer, fields: dict[str, object], message: str):
    with pytest.raises(ArgumentError, match=message):
        TwoStage(model=model, **fields)  # type: ignore[arg-type]


def test_a_prompt_that_leaves_no_room_for_text_and_sid_is_refused(model: Transformer):
    two = TwoStage(model=model, max_tokens=20, marker=3)
    assert two.config.max_position_embeddings == 27
    two.start(torch.zeros(1, 25, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="27 positions"):
        two.start(torch.zeros(1, 26, dtype=torch.int64))
