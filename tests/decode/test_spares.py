"""Prefixes that run later: the answer is that of one run over all of them, whatever the filter, the scoring and the model."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam import BeamSearch, Trie
from leafbeam.decode import SearchResult
from leafbeam.errors import ArgumentError, LogitsError
from tests.fixtures.paths import Paths


def assert_same(result: SearchResult, whole: SearchResult) -> None:
    assert [ids.tolist() for ids in result.item_ids] == [ids.tolist() for ids in whole.item_ids]
    np.testing.assert_array_equal(result.scores, whole.scores)
    np.testing.assert_array_equal(result.codes, whole.codes)
    np.testing.assert_array_equal(result.num_valid, whole.num_valid)
    assert result.rounds_saved == whole.rounds_saved


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    beams=st.integers(2, 24),
    kept=st.integers(1, 23),
    batch=st.integers(1, 3),
    sharpness=st.sampled_from([0.0, 0.3, 1.0, 8.0]),
    scoring=st.sampled_from(["full", "allowed"]),
    share=st.sampled_from([1.0, 0.5, 0.05]),
    first=st.sampled_from([None, 1, 5, 30]),
)
def test_two_calls_find_what_one_finds(seed, beams, kept, batch, sharpness, scoring, share, first) -> None:  # type: ignore[no-untyped-def]
    kept, sizes = min(kept, beams - 1), [6, 5, 4]
    rng = np.random.default_rng(seed)
    trie = Trie.build(rng.integers(0, sizes, (150, 3)), sizes)  # several items may have one SID
    allowed = None if share == 1.0 else trie.filter(rng.random(150) < share)
    search = BeamSearch(trie, [beams, beams, kept], scoring)
    whole = Paths(sizes, batch, sharpness, seed)
    parts = Paths(sizes, batch, sharpness, seed)
    expected = search.run(whole.step_fn, batch, allowed)
    result = search.run(parts.step_fn, batch, allowed, more_fn=parts.more_fn, widths=None if first is None else [1, first])
    assert_same(result, expected)
    assert expected.beams_needed is not None
    np.testing.assert_array_equal(result.beams_needed, expected.beams_needed)
    if len(whole.rows) == 3 and search.config.num_beams[2] < whole.rows[2]:
        assert parts.rows[:2] == whole.rows[:2]
        needed = int(expected.beams_needed[:, -1].max())
        fewest = max(min(first or kept, whole.rows[2]), needed)
        assert fewest <= sum(parts.rows[2:]) <= max(fewest, whole.rows[2])
        assert len(parts.rows) <= 4


class Sure(Paths):
    """The same, but for its last level, where it is sure of a code of each beam."""

    def _logits(self, paths: list[list[tuple[int, ...]]]) -> np.ndarray:
        logits = super()._logits(paths)
        if len(paths[0][0]) == len(self.sizes) - 1:
            logits[:] = -50.0
            logits[..., 0] = 0.0
        return logits


def full_trie(sizes: list[int]) -> Trie:
    return Trie.build(np.indices(sizes).reshape(len(sizes), -1).T, sizes)


def test_a_sure_model_runs_little_more_than_the_items_wanted() -> None:
    sizes = [8, 8, 4]
    parts = Sure(sizes, 2, 1.0, seed=3)
    search = BeamSearch(full_trie(sizes), [8, 40, 5])
    result = search.run(parts.step_fn, 2, more_fn=parts.more_fn)
    assert result.beams_needed is not None
    assert (result.beams_needed[:, -1] >= 5).all()
    assert (result.beams_needed[:, -1] < 20).all()
    assert sum(parts.rows[2:]) == max(5, result.beams_needed[:, -1].max())


def test_without_a_last_step_the_needed_beams_are_counted_and_all_of_them_run() -> None:
    sizes = [8, 8, 4]
    model = Sure(sizes, 1, 1.0, seed=3)
    result = BeamSearch(full_trie(sizes), [8, 40, 5]).run(model.step_fn)
    assert model.rows == [1, 8, 40]
    assert result.beams_needed is not None
    assert 5 <= result.beams_needed[0, -1] < 40


def test_logits_that_the_second_call_overwrites_do_no_harm() -> None:
    sizes = [6, 6, 40]
    model = Paths(sizes, 1, 0.0, seed=5)
    buffer = torch.empty(64 * 40)

    def reused(codes: torch.Tensor, parents: torch.Tensor, level: int) -> torch.Tensor:
        logits = torch.from_numpy(model.more_fn(codes.numpy(), parents.numpy(), level))
        buffer.fill_(torch.nan)
        return buffer[: logits.numel()].view(logits.shape).copy_(logits)

    def step_fn(codes: torch.Tensor | None, parents: torch.Tensor | None) -> torch.Tensor:
        given = (None, None) if codes is None or parents is None else (codes.numpy(), parents.numpy())
        return torch.from_numpy(model.step_fn(*given))

    search = BeamSearch(full_trie(sizes), [6, 20, 1])
    result = search.run(step_fn, more_fn=reused)
    assert len(model.rows) == 4  # two calls of the last level
    assert_same(result, search.run(Paths(sizes, 1, 0.0, seed=5).step_fn))


def poisoned(logits: np.ndarray) -> np.ndarray:
    logits[0, 0, 0] = np.nan
    return logits


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        (0, poisoned, "at level 2 hold"),
        (1, poisoned, "at level 2 hold"),
        (0, lambda logits: logits[:, :1], "at level 2: expected"),
        (1, lambda logits: logits[:, :0], "at level 2: expected"),
        (1, lambda logits: logits[..., :3], "at level 2: expected"),
    ],
)
def test_bad_logits_of_either_part_are_named_with_their_level(part: int, change: Any, says: str) -> None:
    sizes = [6, 6, 40]
    model, calls = Paths(sizes, 1, 0.0, seed=5), iter(range(2))

    def broken(logits: np.ndarray) -> np.ndarray:
        return change(logits) if len(model.rows) > 2 and next(calls) == part else logits

    def step_fn(codes: Any, parents: Any) -> np.ndarray:
        return broken(model.step_fn(codes, parents))

    def more_fn(codes: np.ndarray, parents: np.ndarray, level: int) -> np.ndarray:
        return broken(model.more_fn(codes, parents, level))

    with pytest.raises(LogitsError, match=says):
        BeamSearch(full_trie(sizes), [6, 20, 2]).run(step_fn, more_fn=more_fn)


def test_no_beams_at_first_are_refused() -> None:
    model = Paths([6, 6, 4], 1, 1.0, seed=5)
    with pytest.raises(ArgumentError, match="widths is 0"):
        BeamSearch(full_trie(model.sizes), [6, 20, 3]).run(model.step_fn, more_fn=model.more_fn, widths=0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    width=st.integers(1, 6),
    num_items=st.integers(1, 12),
    scoring=st.sampled_from(["full", "allowed"]),
    share=st.sampled_from([1.0, 0.3]),
)
def test_a_proof_runs_no_prefix_twice_and_at_first_as_many_as_its_widths(seed, width, num_items, scoring, share) -> None:  # type: ignore[no-untyped-def]
    sizes, rng = [6, 5, 4], np.random.default_rng(seed)
    trie = Trie.build(rng.integers(0, sizes, (150, 3)), sizes)
    allowed = None if share == 1.0 else trie.filter(rng.random(150) < share)
    search = BeamSearch(trie, num_items=num_items, scoring=scoring)
    plain, parts = (Paths(sizes, 2, 1.0, seed) for _ in range(2))
    expected = search.run(plain.step_fn, 2, allowed, widths=[width, width])
    result = search.run(parts.step_fn, 2, allowed, more_fn=parts.more_fn, widths=[width, width])
    assert result.is_proved.all()
    np.testing.assert_allclose(result.scores, expected.scores, atol=1e-5)
    assert parts.rows[0] == 1
    assert max(parts.rows[1:3], default=0) <= width
    for request in range(2):
        for paths in parts.levels[1:]:
            live = [path for path in paths[request] if path[-1] or paths[request].count(path) == 1]  # dead beams have code 0
            assert len(set(live)) == len(live)


def test_forced_codes_are_jumped_over_where_the_last_level_could_have_been_run_in_parts() -> None:
    rng = np.random.default_rng(0)
    trie = Trie.build(rng.integers(0, 30, (60, 4)), [30] * 4)  # few items share two codes
    rounds, parts = (Paths([30] * 4, 1, 1.0, seed=1) for _ in range(2))

    def suffix_fn(codes_BKT: np.ndarray, parents_BK: np.ndarray) -> list[np.ndarray]:
        own_BK = np.tile(np.arange(codes_BKT.shape[1]), (len(codes_BKT), 1))
        return [parts.step_fn(codes_BKT[:, :, t], own_BK if t else parents_BK) for t in range(codes_BKT.shape[2])]

    search = BeamSearch(trie, [8, 8, 8, 3])
    result = search.run(parts.step_fn, suffix_fn=suffix_fn, more_fn=parts.more_fn)
    whole = search.run(rounds.step_fn)
    assert result.item_ids[0].tolist() == whole.item_ids[0].tolist()
    np.testing.assert_array_equal(result.scores, whole.scores)
