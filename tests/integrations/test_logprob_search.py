"""Exact beams over an engine that gives log-probabilities, and the items that an engine serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from leafbeam import BeamSearch, Trie
from leafbeam.decode import SearchResult
from leafbeam.errors import ArgumentError, CodesError, ForeignFilterError, InferenceError
from leafbeam.index import Version
from leafbeam.integrations.logprob_search import LogprobBeamSearch
from leafbeam.integrations.logprobs import TokenQuery, answer_to, batches_of, in_slices
from leafbeam.integrations.served_items import DENY, RULES, ServedItems, keep_legal
from leafbeam.live import LiveIndex

from .inference_server import LocalModel, log_probabilities
from .tiny import EOS, SIZES, WORDS, Kind, Model, Shop, prompts, step_fn_of

LENGTHS = (10, 16, 7)
INPUTS = prompts(LENGTHS)
PROMPTS = [row[-length:] for row, length in zip(INPUTS["input_ids"].tolist(), LENGTHS, strict=True)]


def assert_same(mine: SearchResult, wanted: SearchResult) -> None:
    """Items and scores up to rounding; items of equal scores in any order."""
    np.testing.assert_array_equal(mine.num_valid, wanted.num_valid)
    np.testing.assert_allclose(mine.scores, wanted.scores, atol=2e-4)
    for row in range(len(mine.item_ids)):
        ours, theirs = (dict(zip(one.item_ids[row].tolist(), one.scores[row], strict=False)) for one in (mine, wanted))
        last = wanted.scores[row, max(0, int(wanted.num_valid[row]) - 1)]
        clear = (
            {item for item, score in theirs.items() if score > last + 1e-3} if len(theirs) == mine.scores.shape[1] else theirs
        )
        assert set(clear) <= set(ours)


@pytest.mark.parametrize("scoring", ["full", "allowed", "vocabulary"])
@pytest.mark.parametrize("kind", ["trie", "version"])
def test_items_and_scores_equal_beam_search(model: Model, kind: Kind, scoring: Any) -> None:
    shop = Shop(kind)
    filters, deny = [shop.filter(0.3), None, shop.filter(0.02)], [[1, 2], None, [9]]
    step_fn = step_fn_of(model, INPUTS, shop.tokens, scoring)
    wanted = BeamSearch(shop.index, 20, scoring).run(step_fn, 3, filters=filters, deny=deny)
    search = LogprobBeamSearch(shop.index, LocalModel(model), code_tokens=shop.tokens, num_beams=20, scoring=scoring)
    found = search.run(PROMPTS, filters=filters, deny=deny)
    assert_same(found, wanted)
    assert found.num_valid[2] < 20
    assert found.is_complete


def test_scoring_over_the_vocabulary_equals_a_codebook_of_all_tokens(model: Model) -> None:
    """With one code for each token of the model, "full" is a softmax over the model's vocabulary."""
    shop = Shop()
    assert isinstance(shop.index, Trie)
    codes = shop.index.codes_of(np.arange(shop.index.num_items))  # several items may share a Semantic ID
    tokens = np.stack([table[column] for table, column in zip(shop.tokens, codes.T, strict=True)], 1)
    everything = [np.arange(WORDS)] * 3
    wide = Trie.build(tokens, [WORDS] * 3)
    wanted = BeamSearch(wide, num_items=20).run(step_fn_of(model, INPUTS, everything), 3)
    found = LogprobBeamSearch(shop.index, LocalModel(model), code_tokens=shop.tokens).run(PROMPTS)
    assert found.is_proved.all()
    np.testing.assert_allclose(found.scores, wanted.scores, atol=2e-4)
    same = LogprobBeamSearch(wide, LocalModel(model), code_tokens=everything, scoring="full").run(PROMPTS)
    np.testing.assert_allclose(same.scores, wanted.scores, atol=2e-4)


def test_as_many_beams_as_items_rank_every_item_by_its_own_log_probability(model: Model) -> None:
    shop = Shop()
    assert isinstance(shop.index, Trie)
    found = LogprobBeamSearch(shop.index, LocalModel(model), code_tokens=shop.tokens, num_beams=400).run(PROMPTS[:1])
    assert found.num_valid[0] == shop.index.num_items
    codes = shop.index.codes_of(found.item_ids[0])
    tokens = np.stack([table[column] for table, column in zip(shop.tokens, codes.T, strict=True)], 1)
    wanted = np.zeros(len(tokens))
    for level in range(3):
        values = log_probabilities(model, [PROMPTS[0] + row[:level] for row in tokens.tolist()])
        wanted += [value[row[level]] for value, row in zip(values, tokens.tolist(), strict=True)]
    np.testing.assert_allclose(found.scores[0, : len(wanted)], wanted, atol=2e-4)
    assert (np.diff(found.scores[0, : len(wanted)]) <= 0).all()


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_sequences_of_different_lengths_equal_beam_search(small_model: Model, scoring: Any) -> None:
    rng = np.random.default_rng(4)
    titles = [rng.integers(3, 40, rng.integers(1, 5)).tolist() for _ in range(60)]
    index = Trie.from_sequences(titles, vocabulary_size=40, item_ids=np.arange(60))
    inputs = prompts((6, 4), words=40)
    tokens = [np.append(np.arange(40), EOS)] * index.num_levels
    starts = [row[-length:] for row, length in zip(inputs["input_ids"].tolist(), (6, 4), strict=True)]

    def without_the_replaced_code(codes: Any, parents: Any) -> Any:
        scores = step_fn(codes, parents)
        scores[..., EOS] = -np.inf  # the end token is the end code's alone
        return scores

    step_fn = step_fn_of(small_model, inputs, tokens)
    wanted = BeamSearch(index, 8, scoring).run(without_the_replaced_code, 2)
    search = LogprobBeamSearch(index, LocalModel(small_model), eos_token_id=EOS, num_beams=8, scoring=scoring)
    assert_same(search.run(starts), wanted)


def test_only_what_has_a_choice_is_asked(model: Model) -> None:
    """Three items under one prefix: with "allowed" two levels are certain; the others ask of legal tokens alone."""
    index = Trie.build([[1, 2, 3], [1, 2, 4], [1, 2, 9]], SIZES, item_ids=["a", "b", "c"])
    tokens = Shop().tokens
    asked: dict[str, LocalModel] = {}
    for scoring in ("allowed", "vocabulary", "full"):
        asked[scoring] = LocalModel(model)
        found = LogprobBeamSearch(index, asked[scoring], code_tokens=tokens, scoring=scoring).run(PROMPTS[:1])
        assert sorted(found.item_ids[0].tolist()) == ["a", "b", "c"]
        assert found.num_queries == len(asked[scoring].queries)
    assert [query.tokens_C.tolist() for query in asked["allowed"].queries] == [tokens[2][[3, 4, 9]].tolist()]
    assert [len(query.tokens_C) for query in asked["vocabulary"].queries] == [1, 1, 3]
    assert [len(query.tokens_C) for query in asked["full"].queries] == list(SIZES)
    assert asked["allowed"].queries[0].prefix == [*PROMPTS[0], tokens[0][1], tokens[1][2]]


def test_nothing_allowed_asks_nothing_and_the_others_are_answered(model: Model) -> None:
    shop = Shop()
    engine = LocalModel(model)
    search = LogprobBeamSearch(shop.index, engine, code_tokens=shop.tokens)
    nothing = shop.filter(0)
    assert search.run(PROMPTS[:1], filters=nothing).num_valid.tolist() == [0]
    assert engine.queries == []
    found = search.run(PROMPTS[:2], filters=[nothing, None])
    assert found.num_valid.tolist() == [0, 20]
    assert {tuple(query.prefix[:16]) for query in engine.queries} == {tuple(PROMPTS[1])}


def test_a_search_of_a_live_index_finds_what_was_added_and_not_what_was_removed(model: Model) -> None:
    shop = Shop()
    assert isinstance(shop.index, Trie)
    with LiveIndex.create(None, shop.index) as live:
        first = LogprobBeamSearch(live.version(), LocalModel(model), code_tokens=shop.tokens, num_beams=400)
        before = first.run(PROMPTS[:1]).item_ids[0]
        live.delete([int(before[0])])
        live.insert([[11, 8, 13]], [999])
        now = LogprobBeamSearch(live.version(), LocalModel(model), code_tokens=first.tokens, num_beams=400)
        assert now.tokens is first.tokens
        after = now.run(PROMPTS[:1]).item_ids[0]
        assert set(after.tolist()) == set(before.tolist()) - {int(before[0])} | {999}
        assert set(first.run(PROMPTS[:1]).item_ids[0].tolist()) == set(before.tolist())


class Failing(LocalModel):
    """Fails the queries of one prompt at one depth."""

    def __init__(self, model: Model, prompt: list[int], depth: int) -> None:
        super().__init__(model)
        self.prompt, self.depth = prompt, depth

    def logprobs(self, queries: Sequence[TokenQuery]) -> list[Any]:
        values = super().logprobs(queries)
        failed = [list(query.prefix[: -self.depth or None]) == self.prompt for query in queries]
        if self.depth and True in failed:
            failed = [number == failed.index(True) for number in range(len(failed))]  # of several beams, the first alone
        return [InferenceError("late", reason="timeout") if bad else value for bad, value in zip(failed, values, strict=True)]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_request_that_the_engine_fails_has_no_items_and_says_so(model: Model, depth: int) -> None:
    shop = Shop()
    engine = Failing(model, PROMPTS[1], depth)
    search = LogprobBeamSearch(shop.index, engine, code_tokens=shop.tokens)
    with pytest.raises(InferenceError, match="late") as raised:
        search.run(PROMPTS)
    assert raised.value.reason == "timeout"
    found = search.run(PROMPTS, allow_partial=True)
    assert not found.is_complete
    assert list(found.failures) == [1]
    assert found.num_valid.tolist() == [20, 0, 20]
    assert not found.is_proved[1]
    assert_same(search.run([PROMPTS[0], PROMPTS[2]]), take(found, [0, 2]))


@pytest.mark.parametrize("answer", [[-1.0], [[-1.0] * 12], [0.5] * 12, [float("nan")] * 12, [float("inf")] * 12])
def test_answers_of_a_model_of_ones_own_are_checked(model: Model, answer: Any) -> None:
    class Wrong(LocalModel):
        def logprobs(self, queries: Sequence[TokenQuery]) -> list[Any]:
            return [np.array(answer, np.float32) for _ in queries]

    class Short(LocalModel):
        def logprobs(self, queries: Sequence[TokenQuery]) -> list[Any]:
            return []

    shop = Shop()
    with pytest.raises(InferenceError, match="for 12 tokens: expected as many"):
        LogprobBeamSearch(shop.index, Wrong(model), code_tokens=shop.tokens).run(PROMPTS[:1])
    with pytest.raises(InferenceError, match="answered 0 of 1"):
        LogprobBeamSearch(shop.index, Short(model), code_tokens=shop.tokens).run(PROMPTS[:1])


def take(result: SearchResult, rows: list[int]) -> SearchResult:
    ids = [result.item_ids[row] for row in rows]
    arrays = {name: getattr(result, name)[rows] for name in ("scores", "codes", "num_items", "num_valid")}
    return SearchResult(item_ids=ids, **arrays)


def test_tokens_that_the_engine_excludes_are_not_returned(model: Model) -> None:
    shop = Shop()

    class Excluding(LocalModel):
        def logprobs(self, queries: Sequence[TokenQuery]) -> list[NDArray[np.float32]]:
            values = super().logprobs(queries)
            return [np.where(query.tokens_C % 2, value, -np.inf) for query, value in zip(queries, values, strict=True)]

    for scoring in ("vocabulary", "full"):
        found = LogprobBeamSearch(shop.index, Excluding(model), code_tokens=shop.tokens, scoring=scoring).run(PROMPTS)
        assert found.num_valid.max() > 0
        for codes, valid in zip(found.codes, found.num_valid, strict=True):
            tokens = np.stack([table[column] for table, column in zip(shop.tokens, codes[:valid].T, strict=True)])
            assert (tokens % 2).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scoring": "fulll"}, "scoring is 'fulll'"),
        ({"num_beams": 0}, "num_beams is 0"),
        ({"code_tokens": None}, "code_tokens is missing"),
        ({"code_tokens": [range(3)] * 3}, r"names \(3, 3, 3\) tokens"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
    ],
)
def test_arguments_are_checked(model: Model, options: dict[str, Any], message: str) -> None:
    shop = Shop()
    arguments: dict[str, Any] = {"code_tokens": shop.tokens}
    with pytest.raises(ArgumentError, match=message):
        LogprobBeamSearch(shop.index, LocalModel(model), **(arguments | options))


def test_prompts_filters_and_sequences_are_checked(model: Model) -> None:
    shop = Shop()
    search = LogprobBeamSearch(shop.index, LocalModel(model), code_tokens=shop.tokens)
    for prompt in ([], [[1, 2]], [1, [2]], [0.5], [-1], "text"):
        with pytest.raises(ArgumentError, match="prompt 0 is"):
            search.run([prompt])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="batch_size must be"):
        search.run([])
    with pytest.raises(ArgumentError, match="filters has 1 entry"):
        search.run(PROMPTS, filters=[None])
    with pytest.raises(ForeignFilterError):
        search.run(PROMPTS[:1], filters=Trie.build([[0, 0, 0]], SIZES).filter(np.ones(1, np.bool_)))
    sequences = Trie.from_sequences([[5, 6]], vocabulary_size=WORDS)
    with pytest.raises(ArgumentError, match="eos_token_id is missing"):
        LogprobBeamSearch(sequences, LocalModel(model))
    ending = Trie.from_sequences([[5, EOS], [7]], vocabulary_size=WORDS)
    with pytest.raises(CodesError, match="end token"):
        LogprobBeamSearch(ending, LocalModel(model), eos_token_id=EOS).run(PROMPTS[:1])


# What engines answer.


def query(*tokens: int) -> TokenQuery:
    return TokenQuery(prefix=[1], tokens_C=np.array(tokens, np.int64))


def test_an_answer_is_read_by_token_whatever_its_order() -> None:
    values = answer_to(query(7, 3, 5), [5, 9, 3, 3, 7], [-1.5, -3.0, -2, -2.0, -9999.0])
    assert values.dtype == np.float32
    assert values.tolist() == [-np.inf, -2.0, -1.5]


@pytest.mark.parametrize(
    ("tokens", "values", "reason"),
    [
        ([3], [-1.0], "missing_tokens"),
        ([], [], "missing_tokens"),
        ([3, 5, 3], [-1.0, -1.0, -2.0], "duplicate"),
        ([3, 5], [-1.0], "malformed"),
        ([3, 5], [-1.0, 0.5], "malformed"),
        ([3, 5], [-1.0, float("nan")], "malformed"),
        ([3, 5], [-1.0, None], "malformed"),
        ([3, 5], [-1.0, "x"], "malformed"),
        ([3, 5], [-1.0, [1]], "malformed"),
        ([3, "5"], [-1.0, -1.0], "malformed"),
        ([3, 1 << 80], [-1.0, -1.0], "malformed"),
        ([3, 5], [-0.1, -0.1], "malformed"),
        ([3.0, 5.0], [-1.0, -1.0], "malformed"),
    ],
)
def test_an_answer_that_cannot_be_used_is_named(tokens: list[Any], values: list[Any], reason: str) -> None:
    with pytest.raises(InferenceError) as raised:
        answer_to(query(3, 5), tokens, values)
    assert raised.value.reason == reason


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=8), st.one_of(st.none(), st.integers(1, 4)))
def test_slices_are_put_together_in_order(sizes: list[int], width: int | None) -> None:
    queries = [TokenQuery(prefix=[n], tokens_C=np.arange(100 * n, 100 * n + size)) for n, size in enumerate(sizes)]

    def ask(parts: Sequence[TokenQuery]) -> list[Any]:
        assert all(0 < len(part.tokens_C) <= (width or 9) for part in parts)
        return [part.tokens_C.astype(np.float32) for part in parts]

    for one, answer in zip(queries, in_slices(queries, width, ask), strict=True):
        assert not isinstance(answer, InferenceError)
        assert answer.tolist() == one.tokens_C.tolist()


def test_a_slice_that_failed_fails_its_query_alone() -> None:
    queries = [query(1, 2, 3), query(4, 5, 6)]

    def ask(parts: Sequence[TokenQuery]) -> list[Any]:
        return [InferenceError("no") if 6 in part.tokens_C else np.zeros(len(part.tokens_C), np.float32) for part in parts]

    first, second = in_slices(queries, 2, ask)
    assert not isinstance(first, InferenceError)
    assert len(first) == 3
    assert isinstance(second, InferenceError)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 12), min_size=1, max_size=5), max_size=12),
    st.integers(1, 4),
    st.one_of(st.none(), st.just(5)),
)
def test_batches_hold_all_queries_once_within_their_bounds(sets: list[set[int]], prefixes: int, tokens: int | None) -> None:
    queries = [query(*sorted(one)) for one in sets]
    batches = batches_of(queries, max_prefixes=prefixes, max_tokens=tokens)
    assert sorted(number for batch in batches for number in batch) == list(range(len(sets)))
    assert [batch[0] for batch in batches] == sorted(batch[0] for batch in batches)
    for batch in batches:
        assert batch == sorted(batch)
        assert 1 <= len(batch) <= prefixes
        assert tokens is None or len(set().union(*(sets[number] for number in batch))) <= tokens


def test_slices_of_equal_tokens_come_together_and_many_queries_take_no_time() -> None:
    slices = [query(*range(5)), query(*range(5, 10))] * 50
    assert batches_of(slices, max_prefixes=1000, max_tokens=5) == [list(range(0, 100, 2)), list(range(1, 100, 2))]
    assert [len(batch) for batch in batches_of(slices, max_prefixes=40, max_tokens=5)] == [40, 40, 10, 10]
    assert len(batches_of([query(number) for number in range(2000)], max_prefixes=1, max_tokens=1)) == 2000


def test_a_version_is_what_it_searches(model: Model) -> None:
    shop = Shop("version")
    search = LogprobBeamSearch(shop.index, LocalModel(model), code_tokens=shop.tokens, num_beams=[4, 8, 5])
    assert search.version is Version.of(shop.index)
    assert "items" in repr(search)
    assert search.run(PROMPTS[:1]).scores.shape == (1, 5)


def served(kind: Kind = "trie") -> ServedItems:
    shop = Shop(kind)
    filters = {
        "even": shop.index.filter(item_ids=np.arange(6, 300, 2)),
        "third": shop.index.filter(item_ids=np.arange(6, 300, 3)),
    }
    return ServedItems(index=shop.index, code_tokens=shop.tokens, eos_token_id=EOS, filters=filters)


@pytest.mark.parametrize("kind", ["trie", "version"])
def test_every_walk_through_legal_tokens_ends_at_allowed_items_and_reaches_all_of_them(kind: Kind) -> None:
    items = served(kind)
    arguments = {RULES: ["even", "third"], DENY: [12, 18]}
    request = items.request_filter(arguments)
    assert request is not None
    legal = items.legal_tokens(request)
    reached: set[int] = set()
    prefixes: list[list[int]] = [[]]
    for _ in range(items.num_tokens):
        prefixes = [[*prefix, token] for prefix in prefixes for token in legal.after(0, prefix)]
    for prefix in prefixes:
        found = items.item_ids(prefix, arguments).tolist()
        assert found
        assert legal.after(0, prefix) == [EOS]
        assert items.item_ids([*prefix, EOS], arguments).tolist() == found
        reached |= set(found)
    assert reached == set(range(6, 300, 6)) - {12, 18}


def test_what_is_no_whole_allowed_item_has_no_items() -> None:
    items = served()
    whole = [int(table[code]) for table, code in zip(Shop().tokens, items.version.codes_of([7])[0], strict=True)]
    assert 7 in items.item_ids(whole)
    assert 7 not in items.item_ids(whole, {DENY: [7]})
    for wrong in ([], whole[:2], [*whole, whole[0]], [1, 1, 1], [EOS]):
        assert items.item_ids(wrong).tolist() == []


def test_sequences_end_with_the_end_token_or_the_last_token() -> None:
    index = Trie.from_sequences([[11, 12], [11, 12, 13], [40]], vocabulary_size=50, item_ids=["a", "b", "c"])
    items = ServedItems(index=index, eos_token_id=2)
    request = items.request_filter({RULES: []})
    assert request is not None
    legal = items.legal_tokens(request)
    assert sorted(legal.after(0, [])) == [11, 40]
    assert sorted(legal.after(0, [11, 12])) == [2, 13]
    assert legal.after(0, [11, 12, 2]) == [2]
    assert legal.after(0, [13]) == [2]
    for tokens, ids in (
        ([11, 12], ["a"]),
        ([11, 12, 2], ["a"]),
        ([11, 12, 13], ["b"]),
        ([40, 2, 9], ["c"]),
        ([11], []),
        ([], []),
    ):
        assert items.item_ids(tokens).tolist() == ids


def test_requests_without_our_arguments_are_text() -> None:
    items = served()
    assert items.request_filter(None) is None
    assert items.request_filter({"another": 1}) is None
    assert items.request_filter({DENY: []}) is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({RULES: ["odd"]}, r"names 'odd': expected some of \['even', 'third'\]"),
        ({RULES: "even"}, "expected a list"),
        ({RULES: [None]}, "expected a list"),
        ({"leafbeam_rule": []}, "leafbeam_rule is not an argument"),
        ({DENY: 3}, "expected a list"),
    ],
)
def test_arguments_of_requests_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        served().request_filter(arguments)


def test_a_filter_of_another_index_is_refused_at_once() -> None:
    foreign = Trie.build([[0, 0, 0]], (2, 2, 2)).filter(np.ones(1, np.bool_))
    shop = Shop()
    with pytest.raises(ForeignFilterError):
        ServedItems(index=shop.index, code_tokens=shop.tokens, eos_token_id=EOS, filters={"foreign": foreign})
    with pytest.raises(ArgumentError, match="code_tokens is missing"):
        ServedItems(index=shop.index, eos_token_id=EOS)


def test_only_the_rows_of_requests_for_items_change() -> None:
    before = torch.randn(4, WORDS, generator=torch.Generator().manual_seed(0))
    after = before.clone()
    keep_legal(after, {3: [5, 9], 1: [EOS]})
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    for row, tokens in ((3, [5, 9]), (1, [EOS])):
        assert torch.equal(after[row, tokens], before[row, tokens])
        assert int((after[row] > -torch.inf).sum()) == len(tokens)
