import numpy as np
import pytest
import torch

from leafbeam import BeamSearch, Trie
from leafbeam.errors import ArgumentError, FilterError, ForeignFilterError, ItemIdError, LogitsError


def trie_of(num_items: int = 200, size: int = 7, levels: int = 3) -> Trie:
    rng = np.random.default_rng(0)
    return Trie.build(rng.integers(0, size, (num_items, levels)), [size] * levels)


class ByLevel:
    """A model that gives every beam of a level the same row; remembers what it was called with."""

    def __init__(self, rows: list[np.ndarray], as_torch: bool = False, dtype: torch.dtype = torch.float32) -> None:
        self.rows, self.as_torch, self.dtype = rows, as_torch, dtype
        self.calls: list[tuple[object, object]] = []

    def __call__(self, codes: object, parents: object) -> object:
        self.calls.append((codes, parents))
        row = self.rows[len(self.calls) - 1]
        shape = (1,) if codes is None else codes.shape  # type: ignore[attr-defined]
        logits = np.broadcast_to(row, (*shape, len(row))).copy()
        return torch.from_numpy(logits).to(self.dtype) if self.as_torch else logits


def rows(size: int = 7, levels: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=size).astype(np.float32) for _ in range(levels)]


def test_the_first_call_has_no_codes_and_later_ones_are_of_the_models_kind() -> None:
    for as_torch in (False, True):
        model = ByLevel(rows(), as_torch)
        BeamSearch(trie_of(), 5).run(model)
        assert model.calls[0] == (None, None)
        for codes, parents in model.calls[1:]:
            assert isinstance(codes, torch.Tensor if as_torch else np.ndarray)
            assert codes.shape == parents.shape == (1, 5)
            assert "int64" in str(codes.dtype)


def test_half_precision_logits_are_accepted() -> None:
    exact = BeamSearch(trie_of(), 5).run(ByLevel(rows(), True))
    half = BeamSearch(trie_of(), 5).run(ByLevel(rows(), True, torch.bfloat16))
    np.testing.assert_allclose(half.scores, exact.scores, atol=0.1)


def test_integer_logits_from_numpy_are_accepted() -> None:
    model = ByLevel([np.arange(7)] * 3)
    result = BeamSearch(trie_of(), 1).run(model)
    assert result.num_valid[0] == 1


def test_one_beam_is_greedy() -> None:
    trie = trie_of()
    result = BeamSearch(trie, 1).run(ByLevel(rows()))
    lo, hi, sid = 0, trie.num_leaves, []
    for level, row in enumerate(rows()):
        legal = {code: trie.levels[level].find(lo, hi, code) for code in range(7)}
        best = max((code for code, (a, b) in legal.items() if a < b), key=lambda code: row[code])
        sid.append(best)
        lo, hi = legal[best]
    assert result.codes[0, 0].tolist() == sid


def test_widths_differ_from_round_to_round() -> None:
    model = ByLevel(rows())
    result = BeamSearch(trie_of(), [2, 10, 30]).run(model)
    assert [calls[0].shape for calls in model.calls[1:]] == [(1, 2), (1, 10)]  # type: ignore[attr-defined]
    assert result.scores.shape == (1, 30)


def test_beams_that_no_node_could_fill_are_not_asked_of_the_model() -> None:
    model, trie = ByLevel(rows()), trie_of()
    result = BeamSearch(trie, 500).run(model)
    assert trie.levels[1].num_nodes == 48
    assert [calls[0].shape for calls in model.calls[1:]] == [(1, 7), (1, 48)]  # type: ignore[attr-defined]
    assert result.scores.shape == (1, 500)
    assert result.num_valid[0] == 200


def test_an_empty_filter_never_calls_the_model() -> None:
    trie, model = trie_of(), ByLevel(rows())
    result = BeamSearch(trie, 5).run(model, filters=trie.filter(item_ids=[]))
    assert model.calls == []
    assert result.num_valid.tolist() == [0]
    assert len(result.item_ids[0]) == 0
    assert (result.scores == -np.inf).all()


def test_items_on_one_leaf_share_its_score_in_the_callers_order() -> None:
    trie = Trie.build([[1, 1], [0, 0], [1, 1], [1, 1]], [2, 2], ["d", "a", "c", "b"])
    result = BeamSearch(trie, 3).run(ByLevel([np.float32([0, 5]), np.float32([0, 5])]), deny=[["c"]])
    assert result.item_ids[0].tolist() == ["d", "b", "a"]
    assert result.scores[0, 0] == result.scores[0, 1] > result.scores[0, 2]
    assert result.codes[0].tolist() == [[1, 1], [1, 1], [0, 0]]


@pytest.mark.parametrize("beams", [0, -3, [1, 2], [5, 0, 5], []])
def test_widths_out_of_range_are_refused(beams: object) -> None:
    with pytest.raises(ArgumentError, match="num_beams is"):
        BeamSearch(trie_of(), beams)  # type: ignore[arg-type]


def test_other_arguments_out_of_range_are_refused() -> None:
    trie = trie_of()
    with pytest.raises(ArgumentError, match="expected 'full', 'allowed' or 'vocabulary'"):
        BeamSearch(trie, scoring="fulll")  # type: ignore[arg-type]
    search = BeamSearch(trie)
    for call, message in (
        (lambda: search.run(ByLevel(rows()), batch_size=0), "batch_size must be an integer of at least 1, not 0"),
        (lambda: search.run(ByLevel(rows()), batch_size=2, filters=[None] * 3), "filters has 3 entries"),
        (lambda: search.run(ByLevel(rows()), batch_size=2, deny=[[1]]), "deny has 1 entry"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()
    for deny, said in ((3, "3"), (np.array(3), r"array\(3\)")):
        with pytest.raises(ArgumentError, match=f"deny is {said}: expected a list with one entry for each of the 1 request"):
            search.run(ByLevel(rows()), deny=deny)  # type: ignore[arg-type]


def test_a_filter_of_another_index_is_refused() -> None:
    other = trie_of(50)
    with pytest.raises(ForeignFilterError, match="make it again"):
        BeamSearch(trie_of()).run(ByLevel(rows()), filters=other.filter(np.ones(50, np.bool_)))


@pytest.mark.parametrize("shape", [(1, 8), (2, 7), (7,), (1, 1, 1, 7), (0, 7)])
def test_logits_of_the_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(LogitsError, match=r"expected \(1, 1, 7\)"):
        BeamSearch(trie_of()).run(lambda codes, parents: np.zeros(shape, np.float32))


def test_logits_of_text_are_refused() -> None:
    with pytest.raises(LogitsError, match="dtype"):
        BeamSearch(trie_of()).run(lambda codes, parents: np.full((1, 7), "a"))


def test_nan_logits_are_refused() -> None:
    with pytest.raises(LogitsError, match="NaN"):
        BeamSearch(trie_of()).run(lambda codes, parents: np.full((1, 7), np.nan, np.float32))


def test_a_thousand_random_rules_never_let_another_item_through() -> None:
    rng = np.random.default_rng(4)
    trie = trie_of(300, 9)
    search = BeamSearch(trie, 12)
    model_rows = rows(9)
    for _ in range(40):
        masks = rng.random((25, 300)) < rng.random((25, 1)) ** 3
        filters = [trie.filter(mask) for mask in masks]
        calls = iter(model_rows)

        def model(codes: object, parents: object, calls: object = calls) -> np.ndarray:
            row = next(calls)  # type: ignore[call-overload]
            shape = (25, 1) if codes is None else codes.shape  # type: ignore[attr-defined]
            return np.broadcast_to(row, (*shape, 9)).copy()

        result = search.run(model, batch_size=25, filters=filters)
        for request, mask in enumerate(masks):
            assert set(result.item_ids[request].tolist()) <= set(np.flatnonzero(mask).tolist())
            assert result.num_valid[request] == len(result.item_ids[request]) <= min(12, mask.sum())
            assert (result.num_valid[request] > 0) == bool(mask.any())


def test_an_explained_search_has_the_beams_of_each_level_and_the_same_answer() -> None:
    trie = trie_of()
    search = BeamSearch(trie, 5)
    plain, explained = search.run(ByLevel(rows())), search.run(ByLevel(rows()), explain=True)
    assert plain.levels == ()
    np.testing.assert_array_equal(explained.item_ids[0], plain.item_ids[0])
    prefixes: list[tuple[int, ...]] = [()]
    for number, level in enumerate(level.row(0) for level in explained.levels):
        prefixes = [
            (*prefixes[parent], code) for parent, code in zip(level.parents.tolist(), level.codes.tolist(), strict=True)
        ]
        log_probs = [row - np.log(np.exp(row).sum()) for row in rows()]
        for prefix, score, num_sids in zip(prefixes, level.scores, level.num_sids, strict=True):
            assert score == pytest.approx(sum(log_probs[at][code] for at, code in enumerate(prefix)), abs=1e-4)
            sids = trie.codes_at(np.arange(trie.num_leaves)).tolist()
            assert num_sids == sum(tuple(sid[: number + 1]) == prefix for sid in sids) > 0
        assert (np.diff(level.scores) <= 0).all()
    assert [*dict.fromkeys(map(tuple, explained.codes[0].tolist()))] == prefixes[
        : len({*map(tuple, explained.codes[0].tolist())})
    ]


def test_an_explained_search_scores_every_level_although_a_suffix_is_forced() -> None:
    trie = Trie.build(np.array([[0, 1, 2], [3, 4, 5]]), [7, 7, 7])

    def suffix_fn(codes: object, parents: object) -> list[object]:
        raise AssertionError("an explained search jumps over nothing")

    model = ByLevel(rows())
    result = BeamSearch(trie, 2).run(model, suffix_fn=suffix_fn, explain=True)
    assert len(model.calls) == len(result.levels) == 3
    assert [level.row(0).num_sids.tolist() for level in result.levels] == [[1, 1]] * 3


def test_a_deny_list_of_the_wrong_type_is_refused_and_unknown_ids_are_ignored() -> None:
    codes = [[code // 7, code % 7] for code in range(40)]
    by_type = {int: Trie.build(codes, [7, 7]), str: Trie.build(codes, [7, 7], [str(item) for item in range(40)])}
    for kind, trie in by_type.items():
        search = BeamSearch(trie, 40)
        found = search.run(ByLevel(rows(levels=2)), 1, deny=[[kind(7), kind(999)]]).item_ids[0].tolist()
        assert sorted(map(int, found)) == [item for item in range(40) if item != 7]
        other, said = (str, "integers, such as 0: send them as numbers") if kind is int else (int, "text, such as '0': send")
        with pytest.raises(ItemIdError, match=f"deny holds {other(7)!r}, but the item ids of this index are {said}"):
            search.run(ByLevel(rows(levels=2)), 1, deny=[[other(7)]])
        assert len(search.run(ByLevel(rows(levels=2)), 1, deny=[[]]).item_ids[0]) == 40


def test_what_is_no_filter_no_index_or_no_number_of_beams_is_named() -> None:
    trie, model = trie_of(), ByLevel(rows())
    search, fresh = BeamSearch(trie, 5), trie.filter(item_ids=[1])
    for filters, said in (
        ([fresh, "cheap"], r"filters\[1\] is 'cheap': expected a Filter: make one with index.filter\(mask\)"),
        (np.ones(200, np.bool_), r"filters is array\("),
        ("cheap", "filters is 'cheap'"),
    ):
        with pytest.raises(FilterError, match=said):
            search.run(model, 2, filters=filters)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"index is of the type ndarray: expected a Trie.*Trie\.build"):
        BeamSearch(np.zeros((4, 2), np.int64), 5)  # type: ignore[arg-type]
    for beams in (20.5, "5", [5, 5, 5.5]):
        with pytest.raises(ArgumentError, match="expected a positive integer, or 3 of them"):
            BeamSearch(trie, beams)  # type: ignore[arg-type]
    assert BeamSearch(trie, np.int64(5)).run(model).num_valid[0] == 5  # type: ignore[arg-type]
