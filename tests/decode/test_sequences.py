"""Decoding sequences of different lengths, against a float64 oracle that knows no padding: an ended beam keeps its score."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam import BeamSearch, Sampler, Trie
from leafbeam.errors import LogitsError
from leafbeam.index import Segment, Version

END = 4  # tokens 0 to 3


class Model:
    """Logits from a hash of the prefix, the same for the search and the oracle; junk for prefixes that have ended."""

    def __init__(self, seed: int, ties: bool, batch_size: int = 1) -> None:
        self.seed, self.ties, self.batch_size = seed, ties, batch_size
        self.prefixes: list[list[tuple[int, ...]]] = [[()] for _ in range(batch_size)]
        self.calls = 0

    def logits(self, request: int, prefix: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([self.seed, request, len(prefix), *prefix])
        drawn = rng.integers(0, 3, END + 1) if self.ties else rng.normal(size=END + 1)
        return drawn.astype(np.float32)

    def __call__(self, codes: np.ndarray | None, parents: np.ndarray | None) -> np.ndarray:
        self.calls += 1
        if codes is not None and parents is not None:
            self.prefixes = [
                [(*self.prefixes[b][parent], int(code)) for code, parent in zip(codes[b], parents[b], strict=True)]
                for b in range(self.batch_size)
            ]
        rows = [
            [np.full(END + 1, np.nan) if END in one else self.logits(b, one) for one in beams]
            for b, beams in enumerate(self.prefixes)
        ]
        return np.array(rows, np.float32)


def oracle(
    allowed: set[tuple[int, ...]], model: Model, request: int, width: int, scoring: str, levels: int
) -> list[tuple[float, tuple[int, ...]]]:
    """(score, sequence), best first."""
    beams: list[tuple[float, tuple[int, ...], bool]] = [(0.0, (), False)]
    for _ in range(levels):
        candidates: list[tuple[float, int, int, tuple[int, ...], bool]] = []
        for parent, (score, prefix, ended) in enumerate(beams):
            if ended:
                candidates.append((score, parent, END, prefix, True))
                continue
            logits = model.logits(request, prefix).astype(np.float64)
            legal = sorted({one[len(prefix)] for one in allowed if len(one) > len(prefix) and one[: len(prefix)] == prefix})
            legal += [END] if prefix in allowed else []
            of = logits if scoring == "full" else logits[legal]
            normal = np.log(np.exp(of - of.max()).sum()) + of.max() if len(of) else 0.0
            for code in legal:
                candidates.append((score + logits[code] - normal, parent, code, (*prefix, code), code == END))
        candidates.sort(key=lambda one: (-one[0], one[1], one[2]))
        beams = [(score, prefix[:-1] if prefix[-1:] == (END,) else prefix, ended) for score, _, _, prefix, ended in candidates][
            :width
        ]
    return [(score, prefix) for score, prefix, _ in beams]


sequences_ = st.lists(st.lists(st.integers(0, END - 1), max_size=5).map(tuple), min_size=1, max_size=30)


@settings(max_examples=150)
@given(
    sequences_,
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 5, 40]),
    st.sampled_from(["full", "allowed"]),
    st.sampled_from(["cpu", "reference"]),
    st.booleans(),
    st.sampled_from([None, 0.5]),
    st.booleans(),
)
def test_searches_equal_the_oracle(
    sequences: list[tuple[int, ...]],
    seed: int,
    width: int,
    scoring: str,
    backend: str,
    packed: bool,
    share: float | None,
    two: bool,
) -> None:
    rng = np.random.default_rng(seed)
    ids = [f"s{row}" for row in range(len(sequences))]
    cut = len(sequences) // 2 if two else len(sequences)
    longest = max(len(one) for one in sequences)
    parts = [(sequences[:cut], ids[:cut]), (sequences[cut:], ids[cut:])][: 1 + two]
    tries = [Trie.from_sequences(*part[:1], END, part[1], max_length=longest, packed=packed) for part in parts]
    version = Version(segments=tuple(Segment(trie=trie) for trie in tries))
    shown = [share is None or bool(rng.random() < share) for _ in sequences]
    chosen = None if share is None else version.filter(item_ids=[one for one, ok in zip(ids, shown, strict=True) if ok])
    allowed = {one for one, ok in zip(sequences, shown, strict=True) if ok}
    model = Model(seed, ties=False, batch_size=2)
    result = BeamSearch(version, width, scoring, backend).run(model, 2, filters=chosen)  # type: ignore[arg-type]
    for request in range(2):
        expected = oracle(allowed, model, request, width, scoring, longest + 1)
        found: list[tuple[float, tuple[int, ...]]] = []
        for slot in range(int(result.num_valid[request])):
            one = tuple(int(code) for code in result.codes[request, slot] if code != END)
            if not found or found[-1][1] != one:  # several items may have one sequence
                found.append((float(result.scores[request, slot]), one))
        assert [one for _, one in found] == [one for _, one in expected][: len(found)]
        np.testing.assert_allclose([score for score, _ in found], [score for score, _ in expected][: len(found)], atol=1e-5)
        items = sum(sequences[row] in {one for _, one in expected} and shown[row] for row in range(len(sequences)))
        assert result.num_valid[request] == min(width, items)


@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_an_ended_beam_keeps_its_score_to_the_last_bit(scoring: str, backend: str) -> None:
    trie = Trie.from_sequences([[], [1], [1, 2], [1, 2, 3, 0, 1, 2], [3]], END)
    result = BeamSearch(trie, 5, scoring, backend).run(Model(3, ties=False))  # type: ignore[arg-type]
    at = [trie.leaf_of(codes) for codes in result.codes[0]].index(trie.leaf_of([]))
    logits = Model(3, ties=False).logits(0, ())
    short = Trie.from_sequences([[], [1], [3]], END)
    alone = BeamSearch(short, 5, scoring, backend).run(
        lambda codes, parents: logits[None] if codes is None else np.zeros((1, 3, 5))
    )  # type: ignore[arg-type]
    assert result.scores[0, at] == alone.scores[0][[tuple(codes) == (END, END) for codes in alone.codes[0]]][0]


def test_the_model_is_asked_until_the_last_beam_ends() -> None:
    trie = Trie.from_sequences([[0], [1], [0, 0, 0, 0, 0, 0], []], END)
    model = Model(0, ties=True)
    assert BeamSearch(trie, 4).run(model).num_valid[0] == 4
    assert model.calls == 7
    model = Model(0, ties=True)
    assert BeamSearch(trie, 4).run(model, filters=trie.filter(item_ids=[0, 1, 3])).num_valid[0] == 3
    assert model.calls == 2


def test_widths_after_the_end_still_hold() -> None:
    trie = Trie.from_sequences([[0], [1], [2], [], [0, 0, 0, 0]], END)
    only = trie.filter(item_ids=[0, 1, 2, 3])
    widths = [4, 4, 2, 4, 4]
    result = BeamSearch(trie, widths).run(Model(1, ties=False), filters=only)
    whole = BeamSearch(trie, 4).run(Model(1, ties=False), filters=only)
    assert result.num_valid[0] == 2
    assert result.item_ids[0].tolist() == whole.item_ids[0].tolist()[:2]


def test_the_callers_logits_are_left_alone_and_live_rows_are_still_checked() -> None:
    trie = Trie.from_sequences([[0], [1, 1], []], END)
    kept: list[tuple[np.ndarray, np.ndarray]] = []

    def step(codes: np.ndarray | None, parents: np.ndarray | None) -> np.ndarray:
        logits = np.zeros((1, 1 if codes is None else codes.shape[1], END + 1), np.float32)
        kept.append((logits, logits.copy()))
        return logits

    BeamSearch(trie, 3).run(step)
    assert all(np.array_equal(now, then) for now, then in kept)
    with pytest.raises(LogitsError, match="NaN"):
        BeamSearch(trie, 3).run(lambda codes, parents: np.full((1, 1 if codes is None else codes.shape[1], END + 1), np.nan))


@pytest.mark.slow
def test_samples_follow_the_sequences_probabilities() -> None:
    sequences = [(), (0,), (0, 1), (0, 1, 2, 3), (2,)]
    trie = Trie.from_sequences(sequences, END)
    model = Model(5, ties=False)
    exact = {one: np.exp(score) for score, one in oracle(set(sequences), model, 0, 9, "allowed", 5)}
    assert sum(exact.values()) == pytest.approx(1)
    rng = np.random.default_rng(0)
    draws = 1500
    counts = dict.fromkeys(sequences, 0)
    for _ in range(draws):
        drawn = Sampler(trie, 2).run(Model(5, ties=False), rng=rng)
        first = tuple(int(code) for code in drawn.codes[0, 0] if code != END)
        counts[first] += 1
        assert drawn.scores[0, 0] == pytest.approx(np.log(exact[first]), abs=1e-5)
    for one, probability in exact.items():
        assert counts[one] / draws == pytest.approx(probability, abs=4 * np.sqrt(probability / draws) + 0.005)
