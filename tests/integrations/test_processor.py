"""One call of the processor or the callback, without a model: what is legal, what is written, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.peers.python_trie import PythonTrie
from leafbeam import Trie
from leafbeam.errors import ArgumentError, CodesError, ForeignFilterError, LogitsError
from leafbeam.index import Version
from leafbeam.integrations.transformers import CodeTokens, TrieLogitsProcessor, prefix_allowed_tokens_fn
from leafbeam.model import Vocabulary

from .tiny import EOS, PAD, SIZES, WORDS, Kind, Model, Shop, prompts


def rows_of(shop: Shop, depth: int, count: int) -> NDArray[np.int64]:
    """Beginnings of random items."""
    version = Version.of(shop.index)
    codes = version.codes_of(version.all_items.item_ids())
    picked = codes[shop.rng.integers(0, len(codes), count), :depth]
    return np.stack([table[column] for table, column in zip(shop.tokens, picked.T, strict=False)], 1) if depth else picked


@pytest.mark.parametrize("scoring", ["full", "allowed", "vocabulary"])
@pytest.mark.parametrize("kind", ["trie", "version"])
def test_other_devices_and_dtypes_get_the_same_scores(kind: Kind, scoring: Any) -> None:
    """float64 and transposed scores take the way of a device: index arrays and torch's own operations."""
    shop = Shop(kind)
    legal = TrieLogitsProcessor(
        shop.index,
        code_tokens=shop.tokens,
        eos_token_id=EOS,
        prompt_length=0,
        filters=[shop.filter(0.3), None, shop.filter(0)],
        scoring=scoring,
    )
    for depth in range(5):
        rows = torch.from_numpy(np.pad(rows_of(shop, min(depth, 3), 12), ((0, 0), (0, max(0, depth - 3)))))
        scores = torch.randn(12, WORDS, generator=torch.Generator().manual_seed(depth)).log_softmax(-1)
        scores[4] = -torch.inf
        wanted = legal(rows, scores)
        for other in (scores.double(), scores.T.contiguous().T, scores.clone()):
            kept = other.clone()
            torch.testing.assert_close(legal(rows.int(), other).float(), wanted, rtol=1e-4, atol=2e-5)
            assert torch.equal(kept, other)
        assert (wanted.isfinite().any(1)).all()
        half = legal(rows, scores.half())
        assert (half.isfinite().any(1)).all()
        assert not half.isnan().any()
        in_place = TrieLogitsProcessor(
            shop.index, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=0, scoring=scoring, in_place=True
        )
        fresh = TrieLogitsProcessor(shop.index, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=0, scoring=scoring)
        for own in (scores.clone(), scores.double()):
            expected = fresh(rows, own.clone())
            assert in_place(rows, own) is own
            torch.testing.assert_close(own, expected)


def test_any_row_may_be_unknown() -> None:
    """Token 0 is a code like any other, and a depth without a previous call is walked from the root."""
    index = Trie.build([[0, 0, 0], [0, 1, 2], [2, 0, 1]], [3, 3, 3])
    legal = TrieLogitsProcessor(index, code_tokens=[range(3)] * 3, eos_token_id=3, prompt_length=0)
    scores = torch.zeros(2, 4)
    for rows, wanted in (
        ([[0, 0], [0, 1]], [[0], [2]]),
        ([[2, 0], [0, 0]], [[1], [0]]),
        ([[0, 1, 2], [2, 0, 0]], [[3], [3]]),
        ([[2], [0]], [[0], [0, 1]]),
        ([[1, 1], [2, 0]], [[3], [1]]),
    ):
        assert [row.isfinite().nonzero()[:, 0].tolist() for row in legal(torch.tensor(rows), scores)] == wanted
    with pytest.raises(ArgumentError, match="no row begins an allowed item with its"):
        legal(torch.tensor([[0, 2], [1, 2]]), scores)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["trie", "version"]))
def test_beams_may_be_reordered_repeated_and_dropped(seed: int, kind: Kind) -> None:
    """Rows of a request are shuffled, repeated, lost and made illegal between calls; each row's legal tokens depend on its own
    tokens alone."""
    rng = np.random.default_rng(seed)
    shop = Shop(kind, seed=seed % 7, items=int(rng.integers(255, 300)))
    version = Version.of(shop.index)
    filters = [shop.filter(rng.choice([0.02, 0.2, 1.0])) for _ in range(3)]
    legal = TrieLogitsProcessor(shop.index, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=2, filters=filters)
    allowed = [
        {tuple(table[code] for table, code in zip(shop.tokens, row, strict=True)) for row in version.codes_of(one.item_ids())}
        for one in filters
    ]
    width = int(rng.integers(1, 7))
    rows = np.zeros((3, width, 2), np.int64)
    for depth in range(5):
        scores = legal(torch.from_numpy(rows.reshape(3 * width, -1)), torch.zeros(3 * width, WORDS))
        for row, (given_scores, tokens) in enumerate(zip(scores, rows.reshape(3 * width, -1)[:, 2:].tolist(), strict=True)):
            following = {item[depth] for item in allowed[row // width] if item[:depth] == tuple(tokens)} if depth < 3 else set()
            assert set(given_scores.isfinite().nonzero()[:, 0].tolist()) == (following or {EOS})
            over = depth >= 3 and not (depth == 3 and tuple(tokens) in allowed[row // width])
            assert (given_scores.max() == -1e20) == (not following and (depth < 3 or over))
        parents = rng.integers(0, width, (3, width))
        taken = np.empty((3, width, 1), np.int64)
        for request, beam in np.ndindex(3, width):
            finite = scores[request * width + parents[request, beam]].isfinite().nonzero()[:, 0].numpy()
            taken[request, beam] = rng.choice(finite) if rng.random() < 0.9 else rng.integers(0, WORDS)
        rows = np.concatenate([np.take_along_axis(rows, parents[:, :, None], 1), taken], 2)


def test_the_callback_answers_like_the_trie_for_every_prefix() -> None:
    shop = Shop("version")
    filters = [shop.filter(0.2), shop.filter(0.01), None]
    version = Version.of(shop.index)
    allowed_tokens = prefix_allowed_tokens_fn(
        version, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=1, filters=filters, deny=[None, None, [250]]
    )
    everything = version.all_items
    for request, one in enumerate(filters):
        items = version.codes_of((everything - version.filter(item_ids=[250]) if one is None else one).item_ids())
        trie = PythonTrie(np.stack([shop.tokens[level][items[:, level]] for level in range(3)], axis=1).tolist())
        for prefix in [
            [],
            *rows_of(shop, 1, 20).tolist(),
            *rows_of(shop, 2, 50).tolist(),
            *rows_of(shop, 3, 50).tolist(),
            [PAD],
        ]:
            tokens = allowed_tokens(request, torch.tensor([77, *prefix]))
            assert sorted(tokens) == sorted(trie.get(prefix) or [EOS])
            assert allowed_tokens(request, torch.tensor([77, *prefix])) == tokens
    with pytest.raises(ArgumentError, match="no entry"):
        allowed_tokens(3, torch.tensor([77]))


# Sequences of different lengths.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sequence_that_has_ended_may_only_end_again(dtype: torch.dtype) -> None:
    index = Trie.from_sequences([[5], [5, 6], [7]], vocabulary_size=WORDS)
    legal = TrieLogitsProcessor(index, eos_token_id=EOS, prompt_length=0, scoring="vocabulary")

    def following(*rows: list[int]) -> list[dict[int, float]]:
        scores = legal(torch.tensor(rows), torch.full((len(rows), WORDS), -0.5, dtype=dtype))
        return [{int(token): float(row[token]) for token in row.isfinite().nonzero()[:, 0]} for row in scores]

    assert following([5], [7], [9]) == [{EOS: -0.5, 6: -0.5}, {EOS: -0.5}, {EOS: pytest.approx(-1e20)}]
    assert following([5, EOS], [5, 6]) == [{EOS: pytest.approx(-1e20)}, {EOS: -0.5}]
    assert following([5, EOS, PAD], [5, 6, EOS]) == [{EOS: pytest.approx(-1e20)}] * 2


def test_sequences_with_their_own_end_token_are_refused() -> None:
    index = Trie.from_sequences([[5, 6, EOS]], vocabulary_size=WORDS)
    legal = TrieLogitsProcessor(index, eos_token_id=EOS, prompt_length=0)
    function = prefix_allowed_tokens_fn(index, eos_token_id=EOS, prompt_length=0)
    for call in (
        lambda: legal(torch.tensor([[5, 6]]), torch.zeros(1, WORDS)),
        lambda: legal(torch.tensor([[5, 6]]), torch.zeros(1, WORDS, dtype=torch.float64)),
        lambda: function(0, torch.tensor([5, 6])),
    ):
        with pytest.raises(CodesError, match="without their end token"):
            call()


def test_tokens_are_made_once_for_many_processors() -> None:
    for index, table in ((Shop().index, Shop().tokens), (Trie.from_sequences([[5], [6, 7]], vocabulary_size=WORDS), None)):
        first = TrieLogitsProcessor(index, code_tokens=table, eos_token_id=EOS, prompt_length=0)
        again = TrieLogitsProcessor(index, code_tokens=first.tokens, eos_token_id=EOS, prompt_length=3)
        assert again.tokens is first.tokens
    with pytest.raises(ArgumentError, match="another end token"):
        TrieLogitsProcessor(index, code_tokens=first.tokens, eos_token_id=PAD, prompt_length=0)


# Mistakes.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code_tokens": [[3, 4], [5, 6]]}, "one token for each code"),
        ({"code_tokens": None}, "code_tokens is missing"),
        ({"code_tokens": [[3] * 12, range(9), range(14)]}, "two codes"),
        ({"code_tokens": [np.arange(12) / 2, range(9), range(14)]}, "expected integers"),
        ({"code_tokens": [range(-1, 11), range(9), range(14)]}, "numbers from 0"),
        ({"eos_token_id": 5}, "also the token of a code of level 0"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"prompt_length": -1}, "prompt_length is -1"),
        ({"scoring": "fulll"}, "'full', 'allowed' or 'vocabulary'"),
        ({"filters": [None, None], "deny": [None]}, "deny has 1 entry"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_reason(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"code_tokens": Vocabulary(codebook_sizes=SIZES), "eos_token_id": EOS, "prompt_length": 6}
    with pytest.raises(ArgumentError, match=message):
        TrieLogitsProcessor(Shop().index, **(arguments | change))


def test_a_call_that_does_not_fit_is_refused_with_its_reason(model: Model) -> None:
    shop, inputs = Shop(), prompts([6, 6, 6])
    legal = shop.processor(inputs, filters=[None, None])
    ids, scores = inputs["input_ids"], torch.zeros(3, WORDS)
    with pytest.raises(ArgumentError, match="3 rows, but filters or deny name 2 requests"):
        legal(ids, scores)
    for wrong_ids, wrong_scores, message in (
        (ids[:, :4], scores, "at least prompt_length=6"),
        (ids.float(), scores, "integers"),
        (ids[0], scores, r"expected \(rows, tokens\)"),
        (ids, scores[:2], "expected 3 rows"),
        (ids, scores[:, :50], "more than"),
    ):
        with pytest.raises(ArgumentError, match=message):
            shop.processor(inputs)(wrong_ids, wrong_scores)
    for attempt, says in (
        (
            lambda: model.generate(
                **inputs,
                logits_processor=[TrieLogitsProcessor(shop.index, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=2)],
                max_new_tokens=3,
            ),
            "is prompt_length=2 the number of columns",
        ),
        (lambda: shop.processor(inputs).results(ids, num_return_sequences=2), "are not num_return_sequences=2"),
        (lambda: shop.processor(inputs).results(ids, torch.zeros(2)), "one for each of 3 sequences"),
    ):
        with pytest.raises(ArgumentError, match=says):
            attempt()
    with pytest.raises(ForeignFilterError):
        shop.processor(inputs, filters=Shop(seed=3).filter(0.5))


@pytest.mark.parametrize("length", [0, 1, 2])
def test_too_few_new_tokens_are_refused_by_name(length: int) -> None:
    shop = Shop()
    legal = TrieLogitsProcessor(shop.index, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=4)
    cut = torch.from_numpy(np.concatenate([np.full((6, 4), 9), rows_of(shop, length, 6)], 1))
    with pytest.raises(ArgumentError, match=f"stopped after {length} tokens? inside 6 items.* pass max_new_tokens=3"):
        legal.results(cut, num_return_sequences=3)
    ended = torch.cat([cut, torch.full((6, 1), EOS)], 1)  # nothing was allowed: a short answer is right
    assert legal.results(ended, num_return_sequences=3).num_valid.tolist() == [0, 0]


def test_too_few_new_tokens_for_a_sequence_are_refused_where_one_is_cut() -> None:
    index = Trie.from_sequences([[5, 6], [5, 6, 7], [11]], vocabulary_size=WORDS, item_ids=["a", "b", "c"])
    legal = TrieLogitsProcessor(index, eos_token_id=EOS, prompt_length=1)
    whole = legal.results(torch.tensor([[1, 11, EOS, PAD], [1, 5, 6, EOS]]), num_return_sequences=2)
    assert whole.item_ids[0].tolist() == ["c", "a"]
    with pytest.raises(ArgumentError, match="stopped after 2 tokens inside 1 item"):
        legal.results(torch.tensor([[1, 11, EOS], [1, 5, 6]]), num_return_sequences=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("scoring", ["full", "allowed", "vocabulary"])
def test_scores_that_are_not_finite_are_rejected_where_they_are_read(scoring: Any, value: float, dtype: torch.dtype) -> None:
    """A13: in every precision."""
    shop, inputs = Shop(), prompts([6])
    scores = torch.zeros(1, WORDS, dtype=dtype)
    scores[0, int(shop.tokens[0][0])] = value
    with pytest.raises(LogitsError, match="row 0 hold NaN"):
        shop.processor(inputs, scoring=scoring)(inputs["input_ids"], scores)
    scores = torch.zeros(1, WORDS, dtype=dtype)
    scores[0, int(shop.tokens[1][0])] = value  # of another level: nobody looks
    assert shop.processor(inputs, scoring=scoring)(inputs["input_ids"], scores).isfinite().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_the_row_of_a_bad_score_is_named_at_each_depth(value: float, dtype: torch.dtype) -> None:
    """A13: at a later level, transposed scores, another row, and the end token of whole items."""
    shop = Shop()
    for depth, token in ((1, None), (2, None), (3, EOS)):
        rows = torch.from_numpy(rows_of(shop, depth, 6))
        legal = TrieLogitsProcessor(
            shop.index, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=0, scoring="vocabulary"
        )
        scores = torch.zeros(6, WORDS, dtype=dtype)
        following = legal(rows, scores.clone())[4].isfinite().nonzero()[0, 0]
        scores[4, following if token is None else token] = value
        with pytest.raises(LogitsError, match="row 4 hold NaN"):
            legal(rows, scores)
        with pytest.raises(LogitsError, match="row 4 hold NaN"):
            legal(rows, scores.T.contiguous().T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_a_level_that_the_model_excludes_is_not_an_error(scoring: Any, dtype: torch.dtype) -> None:
    """A13: -inf is a number that may come; +inf and NaN of tokens that are not read stay unread."""
    shop, inputs = Shop(), prompts([6])
    scores = torch.full((1, WORDS), -torch.inf, dtype=dtype)
    scores[0, int(shop.tokens[1][0])] = torch.nan
    assert shop.processor(inputs, scoring=scoring)(inputs["input_ids"], scores).isfinite().nonzero()[:, 1].tolist() == [EOS]


def test_rows_of_one_array_are_tables_of_their_own() -> None:
    table = np.stack([np.arange(3, 7), np.arange(13, 17), np.arange(23, 27)])
    tokens = CodeTokens.of(table)
    assert [int(level.token_V[0]) for level in tokens.levels] == [3, 13, 23]
    assert CodeTokens.of(tokens) is tokens
    shared = CodeTokens.of([list(range(4))] * 3)
    assert len({id(level) for level in shared.levels}) in (1, 3)
