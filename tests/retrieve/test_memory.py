"""The item memory: its scores, its files, and its fusion with a model."""

from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest

from leafbeam.errors import ArgumentError, ForeignFilterError, IndexFileError, ItemIdError
from leafbeam.index import Trie, tensor_file
from leafbeam.live import LiveIndex
from leafbeam.retrieve import Beams, BoundMemory, Example, Fusion, Fusions, ItemMemory, MemoryConfig, features, text
from leafbeam.retrieve.fusion import MemoryScores
from leafbeam.retrieve.state import KIND
from leafbeam.retrieve.text import MAX_TERMS, TextEncoder, TextVectors

RNG = np.random.default_rng(0)
WORDS = ["red", "green", "blue", "shoe", "boot", "tea", "cup", "lamp", "soap", "brush"]


def random_memory(num_items: int = 30, *, texts: bool = True, **settings: object) -> tuple[ItemMemory, list[list[int]]]:
    rng = np.random.default_rng(num_items)
    histories = [rng.integers(0, num_items, rng.integers(1, 9)).tolist() for _ in range(60)]
    indptr = np.cumsum([0, *map(len, histories)])
    words = [" ".join(rng.choice(WORDS, rng.integers(0, 5))) for _ in range(num_items)]
    memory = ItemMemory.fit(
        [f"item-{n}" for n in range(num_items)],
        indptr,
        np.concatenate(histories),
        texts=words if texts else None,
        config=MemoryConfig(**settings),  # type: ignore[arg-type]
    )
    return memory, histories


def expected_transitions(histories: list[list[int]], config: MemoryConfig) -> dict[tuple[int, int], float]:
    counts: dict[tuple[int, int], float] = {}
    for history in histories:
        for at, before in enumerate(history):
            for distance, after in enumerate(history[at + 1 : at + 1 + config.distances]):
                weight = config.distance_decay**distance
                counts[before, after] = counts.get((before, after), 0.0) + weight
                counts[after, before] = counts.get((after, before), 0.0) + config.reverse * weight
    return counts


def unit_vectors(texts: TextVectors) -> list[dict[int, float]]:
    vectors: list[dict[int, float]] = []
    for begin, end in zip(texts.indptr_N1[:-1], texts.indptr_N1[1:], strict=True):
        weights = texts.weights_C[begin:end].astype(float)
        vectors.append(dict(zip(texts.terms_C[begin:end].tolist(), weights / np.sqrt((weights**2).sum()), strict=True)))
    return vectors


def ids(rows: list[int]) -> list[str]:
    return [f"item-{row}" for row in rows]


@pytest.mark.parametrize("settings", [{}, {"distances": 1, "reverse": 0.0, "history": 1}, {"text_weight": 0.0, "history": 3}])
def test_scores_equal_the_formula(settings: dict[str, float]):
    memory, histories = random_memory(max_entries=1000, **settings)
    config, counts = memory.config, expected_transitions(histories, memory.config)
    texts = unit_vectors(memory.texts)
    history = [3, 7, 7, 1, 20, 9, 4]
    expected = np.zeros(30)
    for step, before in enumerate(history[::-1][: config.history]):
        row = {after: log(1 + count) for (first, after), count in counts.items() if first == before and count}
        for after in range(30):
            score = row.get(after, 0.0) / (config.shrinkage + max(row.values()))
            if after != before:
                score += config.text_weight * sum(weight * texts[after].get(term, 0) for term, weight in texts[before].items())
            expected[after] += config.history_decay**step * score
    result = memory.search(ids(history), num_items=30)
    order = [item for item in np.argsort(-expected, kind="stable") if expected[item] > 0]
    assert sorted(result.item_ids) == sorted(ids(order))
    by_id = dict(zip(result.item_ids, result.scores, strict=True))
    for row in order:  # transitions are stored in 255 steps
        assert by_id[f"item-{row}"] == pytest.approx(expected[row], abs=0.02)
    assert list(result.scores) == sorted(result.scores, reverse=True)


def test_weights_of_terms_are_those_of_tf_idf():
    texts = ["red red shoe", "red boot", "green tea", ""] * 10
    encoder = TextEncoder.fit(texts)
    vectors = encoder.encode([*texts[:4], "green unheard-of"])
    assert np.diff(vectors.indptr_N1).tolist() == [2, 2, 2, 0, 1]
    idf = {word: log((1 + 40) / (1 + count)) + 1 for word, count in {"red": 20, "shoe": 10}.items()}
    red, shoe = (1 + log(2)) * idf["red"], idf["shoe"]
    expected = sorted([round(255 * red / max(red, shoe)), round(255 * shoe / max(red, shoe))])
    np.testing.assert_allclose(sorted(vectors.weights_C[:2].tolist()), expected, atol=4)  # idf is in steps of 1/16


def test_the_heaviest_terms_of_a_long_text_are_kept():
    common = [f"word{n}" for n in range(MAX_TERMS)]
    texts = [" ".join(common)] * 30 + ["rare " + " ".join(common)] * 2
    encoder = TextEncoder.fit(texts)
    vectors = encoder.encode(texts)
    assert np.diff(vectors.indptr_N1).tolist() == [MAX_TERMS] * 32
    assert encoder.encode(["rare"]).terms_C[0] in vectors.terms_C[-MAX_TERMS:]


def test_the_nearest_texts_are_those_of_the_largest_cosines():
    rng = np.random.default_rng(3)
    words = [" ".join(f"word{number}" for number in rng.integers(0, 25, rng.integers(0, 7))) for _ in range(60)]
    texts = TextEncoder.fit(words).encode(words)
    units = unit_vectors(texts)
    found = texts.nearest(7)
    assert found.rows_NM.shape == found.cosines_NM.shape == (60, 7)
    for row, unit in enumerate(units):
        cosines = [sum(weight * other.get(term, 0) for term, weight in unit.items()) for other in units]
        cosines[row] = 0.0
        np.testing.assert_allclose(found.cosines_NM[row], sorted(cosines, reverse=True)[:7], rtol=1e-5, atol=1e-6)
        for other, cosine in zip(found.rows_NM[row].tolist(), found.cosines_NM[row].tolist(), strict=True):
            assert cosine == 0 or cosines[other] == pytest.approx(cosine, rel=1e-5)


def test_the_nearest_texts_by_their_rare_terms_where_frequent_ones_are_too_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text, "_MAX_POSTINGS", 12)
    words = [f"common pair{number // 2}" for number in range(40)]
    found = TextEncoder.fit(words).encode(words).nearest(3)
    np.testing.assert_array_equal(found.rows_NM[:, 0], np.arange(40) ^ 1)
    assert (found.cosines_NM[:, 1] == 0).all()


@pytest.mark.parametrize("words", [[], [""], ["red"], ["red", "red"], ["", ""]])
def test_the_nearest_texts_of_few(words: list[str]):
    found = TextEncoder.fit(words).encode(words).nearest(5)
    assert found.rows_NM.shape == (len(words), max(1, len(words) - 1))
    assert (found.cosines_NM > 0).any() == (words == ["red", "red"])


def test_texts_are_taken_and_joined():
    encoder = TextEncoder.fit(WORDS * 3)
    left, right = encoder.encode(["red shoe", "", "tea"]), encoder.encode(["blue", "cup lamp"])
    both = left.followed_by(right)
    assert unit_vectors(both) == unit_vectors(left) + unit_vectors(right)
    order = [4, 1, 1, 0]
    assert unit_vectors(both.take(np.array(order))) == [unit_vectors(both)[row] for row in order]
    assert len(both.take(np.array([], np.int64))) == 0


def test_the_largest_transitions_are_kept():
    memory, histories = random_memory(texts=False, max_entries=3, text_weight=0.0)
    counts = expected_transitions(histories, memory.config)
    for item in range(30):
        found = memory.search(ids([item]), num_items=30).item_ids
        row = sorted((-count, after) for (first, after), count in counts.items() if first == item and count)
        assert set(found) == set(ids([after for _, after in row[:3]]))


def test_a_filter_gives_the_best_of_the_allowed_items():
    memory, _ = random_memory()
    everything = memory.search(ids([3, 4, 5]), num_items=30)
    allowed = RNG.random(30) < 0.3
    names = memory.item_ids[allowed]
    expected = [item for item in everything.item_ids if item in names]
    assert list(memory.search(ids([3, 4, 5]), num_items=30, allowed_N=allowed).item_ids) == expected
    assert list(memory.search(ids([3, 4, 5]), num_items=2, allowed_N=allowed).item_ids) == expected[:2]
    denied = memory.search(ids([3, 4, 5]), num_items=30, allowed_N=allowed, deny=[expected[0], "unknown"])
    assert list(denied.item_ids) == expected[1:]
    assert memory.search(ids([3]), allowed_N=np.zeros(30, np.bool_)).item_ids == ()


def test_of_equal_scores_the_first_rows_win():
    memory = ItemMemory.fit(range(6), np.array([0, 2, 4, 6, 8]), np.array([0, 5, 0, 3, 0, 4, 0, 2]))
    assert memory.search([0], num_items=3).item_ids == (2, 3, 4)


def test_a_reason_names_the_largest_part():
    memory = ItemMemory.fit(
        ["a", "b", "c", "d"], np.array([0, 2, 4]), np.array([0, 1, 0, 1]), texts=["red lamp", "", "green tea", "red lamp"]
    )
    result = memory.search(["c", "a"])
    assert dict(zip(result.item_ids, [(why.channel, why.item_id) for why in result.reasons], strict=True)) == {
        "b": ("transition", "a"),
        "d": ("text", "a"),
    }


def test_unknown_and_missing_histories_find_nothing():
    memory, _ = random_memory()
    for history in ([], ["unknown"], [5]):
        assert memory.search(history).item_ids == ()
    assert memory.search(["unknown", "item-3"]).item_ids == memory.search(["item-3"]).item_ids


def test_a_deny_list_of_the_wrong_type_is_refused():
    memory, _ = random_memory()
    with pytest.raises(ItemIdError, match="deny holds 3"):
        memory.search(["item-3"], deny=[3])


def test_older_interactions_count_less_under_a_half_life():
    day = 86_400_000_000_000
    arguments = (range(3), np.array([0, 2, 4]), np.array([0, 1, 0, 2]))
    times = np.array([0, 0, 10 * day, 10 * day])
    plain = MemoryConfig(shrinkage=0.0)
    assert ItemMemory.fit(*arguments, config=plain).search([0]).scores == (1.0, 1.0)
    decayed = ItemMemory.fit(*arguments, times_E=times, config=replace(plain, half_life_days=10)).search([0])
    assert decayed.item_ids == (2, 1)
    assert decayed.scores[1] == pytest.approx(log(1.5) / log(2), abs=0.01)
    with pytest.raises(ArgumentError, match="times_E"):
        ItemMemory.fit(*arguments, config=MemoryConfig(half_life_days=10))


def test_a_saved_memory_gives_equal_answers(tmp_path):
    memory, _ = random_memory()
    memory.save(tmp_path / "memory")
    loaded = ItemMemory.load(tmp_path / "memory")
    assert loaded.config == memory.config
    assert (loaded.item_ids == memory.item_ids).all()
    for item in range(30):
        assert loaded.search(ids([item, 3])) == memory.search(ids([item, 3]))
    assert loaded.encoder is not None
    assert memory.encoder is not None
    ours, same = (one.encoder.encode(["red shoe"]) for one in (memory, loaded))
    assert (ours.terms_C.tolist(), ours.weights_C.tolist()) == (same.terms_C.tolist(), same.weights_C.tolist())


def test_integer_ids_and_no_texts_are_saved_too(tmp_path):
    memory = ItemMemory.fit([7, 5, 9], np.array([0, 3]), np.array([0, 1, 2]))
    memory.save(tmp_path / "memory")
    assert ItemMemory.load(tmp_path / "memory").search([7]) == memory.search([7])


def test_a_file_that_is_no_memory_is_refused(tmp_path):
    memory, _ = random_memory()
    path = tmp_path / "memory"
    memory.save(path)
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    with pytest.raises(IndexFileError, match="damaged"):
        ItemMemory.load(path)
    Trie.build([[0]], codebook_sizes=[1]).save(path)
    with pytest.raises(IndexFileError, match="not a leafbeam item memory"):
        ItemMemory.load(path)
    with pytest.raises(IndexFileError, match="No such file"):
        ItemMemory.load(tmp_path / "missing")


@pytest.mark.parametrize(
    "damage",
    [
        10**400,
        float("nan"),
        -1,
        0,
        2.8,
        "weight",
        "shape",
        "indptr",
        "levels",
        "repeated",
        "not UTF-8",
        "text_indptr",
        "format",
    ],
)
def test_absurd_values_behind_a_valid_digest_are_refused(tmp_path, damage):
    path = tmp_path / "memory"
    ItemMemory.fit(["a", "b", "c"], np.array([0, 3]), np.array([0, 1, 2])).save(path)
    header, tensors = tensor_file.read(path, KIND)
    if damage == "weight":
        header["config"]["text_weight"] = 10**400
    elif damage == "format":
        header["format_version"] = 1
    elif damage == "shape":
        tensors["ids"] = tensors["ids"].reshape(3, 1, 1)
    elif isinstance(damage, str):
        name, value = {"repeated": ("ids", ord("b")), "not UTF-8": ("ids", 0xFF), "levels": ("levels", 0)}.get(
            damage, (damage, 1)
        )
        tensors[name][0] = value
    else:
        header["step"] = damage
    del header["digest"]
    tensor_file.write(path, KIND, header, tensors)
    with pytest.raises(IndexFileError, match="does not hold a complete item memory"):
        ItemMemory.load(path)


@pytest.mark.parametrize("damage", ["beyond", "falling", "weightless", "short", "none"])
def test_texts_that_are_none_are_refused(tmp_path, damage):
    path = tmp_path / "memory"
    ItemMemory.fit(["a", "b"], np.array([0, 2]), np.array([0, 1]), texts=["red shoe", "red boot"]).save(path)
    header, tensors = tensor_file.read(path, KIND)
    if damage == "beyond":
        tensors["text_terms"][-1] = 3
    elif damage == "falling":
        tensors["text_terms"][:2] = tensors["text_terms"][1::-1]
    elif damage == "weightless":
        tensors["text_weights"][0] = 0
    elif damage == "short":
        tensors["text_weights"] = tensors["text_weights"][:-1]
    else:
        del tensors["term_hashes"]
    del header["digest"]
    tensor_file.write(path, KIND, header, tensors)
    with pytest.raises(IndexFileError, match="does not hold a complete item memory"):
        ItemMemory.load(path)


def test_a_filter_of_an_index_applies_to_the_memory():
    memory, _ = random_memory()
    names = [f"item-{n}" for n in (9, 3, 29, 100, 7)]  # in another order, one unknown to the memory
    trie = Trie.build([[1, 0], [0, 1], [0, 1], [1, 1], [0, 0]], codebook_sizes=[2, 2], item_ids=names)
    bound = BoundMemory(memory, trie)
    assert set(memory.item_ids[bound.allowed()]) == set(names)
    assert set(memory.item_ids[bound.allowed(trie.filter(item_ids=["item-3", "item-100"]))]) == {"item-3", "item-100"}
    assert not bound.allowed(trie.filter(item_ids=[])).any()
    other = Trie.build([[1, 0]], codebook_sizes=[2, 2], item_ids=["item-1"])
    with pytest.raises(ForeignFilterError):
        bound.allowed(other.filter(item_ids=["item-1"]))
    with pytest.raises(ItemIdError, match="none of the item memory's 31 items"):
        BoundMemory(memory, Trie.build([[1, 0]], codebook_sizes=[2, 2], item_ids=["else"]))


def test_unusable_arguments_are_refused_by_name():
    for error, call, message in (
        (ArgumentError, lambda: ItemMemory.fit(["a", "b"], np.array([0, 2]), np.array([0, 2])), "expected rows of the 2 items"),
        (ItemIdError, lambda: ItemMemory.fit(["a", "a"], np.array([0, 2]), np.array([0, 1])), "more than once"),
        (
            ArgumentError,
            lambda: ItemMemory.fit(["a", "b"], np.array([0, 2]), np.array([0, 1]), texts=["red"]),
            "1 text for 2 items",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
    for settings in ({"distances": 0}, {"reverse": 2.0}, {"text_weight": -1.0}, {"half_life_days": 0.0}, {"max_entries": 1.5}):
        with pytest.raises(ArgumentError, match=next(iter(settings))):
            MemoryConfig(**settings)  # type: ignore[arg-type]
    memory, _ = random_memory()
    with pytest.raises(ArgumentError, match="num_items"):
        memory.search(["item-1"], num_items=0)
    with pytest.raises(ArgumentError, match="allowed_N"):
        memory.search(["item-1"], allowed_N=np.ones(3, np.bool_))


def test_an_inserted_item_is_found_at_once_by_its_text():
    texts = ["red lamp", "green tea", "red shoe", "blue tea"]
    memory = ItemMemory.fit(["a", "b", "c", "d"], np.array([0, 2]), np.array([0, 1]), texts=texts)
    memory.insert(["e", "f"], texts=["green tea", "unheard of"])
    assert memory.search(["b"]).item_ids == ("e", "d", "a")  # the same text, a word of it, a transition back
    assert memory.search(["e"]).item_ids[0] == "b"
    memory.insert(["f", "g"], like=[["b"], []])
    assert set(memory.search(["e"]).item_ids[:2]) == {"b", "f"}
    assert "g" not in memory.search(["e"]).item_ids
    assert memory.search(["a"]).item_ids[0] == "b"  # a transition, as before


def test_items_that_cannot_be_inserted_are_refused_by_name():
    memory = ItemMemory.fit(["a", "b"], np.array([0, 2]), np.array([0, 1]))
    for error, call, message in (
        (ArgumentError, lambda: memory.insert(["c"], texts=["tea"]), "without texts"),
        (ArgumentError, lambda: memory.insert(["c"]), "1 item: expected as many"),
        (ItemIdError, lambda: memory.insert([3], like=[["a"]]), "strings, not integers"),
        (ItemIdError, lambda: memory.insert(["c", "c"], like=[["a"], ["b"]]), "more than once"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_an_item_of_the_index_alone_takes_the_text_of_its_neighbours_by_semantic_id():
    texts = ["red lamp", "green tea", "red lamp", "blue cup"]
    memory = ItemMemory.fit(["a", "b", "c", "d"], np.array([0, 2]), np.array([1, 3]), texts=texts)
    codes = [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2]]
    trie = Trie.build(codes, codebook_sizes=[2, 3], item_ids=["a", "b", "c", "d", "new"])
    allowed = BoundMemory(memory, trie).allowed()
    assert set(memory.search(["a"], allowed_N=allowed).item_ids[:2]) == {"c", "new"}


def test_a_binding_follows_the_versions_of_a_live_index():
    memory, _ = random_memory()
    names = ids(list(range(30)))
    codes = np.arange(30)[:, None] // [9, 3, 1] % [8, 3, 3]
    live = LiveIndex.create(None, Trie.build(codes, codebook_sizes=[8] * 3, item_ids=names))
    bound = BoundMemory(memory, live.version())
    live.insert([codes[7]], ["late"])
    live.delete(["item-4", "item-5"])
    bound = BoundMemory(memory, live.version(), like=bound)
    assert set(memory.item_ids[bound.allowed()]) == {*names, "late"} - {"item-4", "item-5"}
    assert "late" in memory.search(["item-7"], num_items=40, allowed_N=bound.allowed()).item_ids
    only = bound.allowed(live.version().filter(item_ids=["late", "item-6"]))
    assert set(memory.item_ids[only]) == {"late", "item-6"}


def test_a_memory_that_grows_beyond_two_bytes_a_row_is_saved_whole(tmp_path):
    names = [str(n) for n in range(1 << 16)]
    memory = ItemMemory.fit(names, np.array([0, 2]), np.array([3, 65_535]))
    memory.insert(["new"], like=[["3"]])
    memory.observe(["3"], "new")
    memory.observe(["3"], "new")
    memory.save(tmp_path / "memory")
    assert ItemMemory.load(tmp_path / "memory").search(["3"]).item_ids == ("new", "65535")


def test_files_of_format_2_stay_readable():
    memory = ItemMemory.load(Path(__file__).parent.parent / "fixtures" / "memory-v2.leafbeam")
    found = memory.search(["a", "b"])
    assert found.item_ids == ("c", "d", "b", "a")
    assert found.scores == pytest.approx((1.222032, 0.58094, 0.556066, 0.425574), abs=1e-6)
    assert [(reason.channel, reason.item_id) for reason in found.reasons][::3] == [("transition", "b"), ("text", "b")]
    assert memory.fusion is not None
    assert memory.fusion.kept == memory.fusion.removed
    assert (memory.fusion.kept.log_prob, memory.counts("b")) == (0.5, pytest.approx({"a": 0.1, "c": 1, "d": 1}, rel=0.05))


MEMORY = MemoryScores(
    np.array([0.5, 0, 0, 1, 0], np.float32),
    np.array([0, 0.25, -0.1, 0, 0], np.float32),
    np.array([True, True, True, True, True]),
)


def test_every_item_of_either_channel_is_scored_by_its_features():
    fusion = Fusion(transition=2.0, text=4.0, log_prob=0.5, found=1.0, seen=-8.0)
    beams = Beams(np.array([4, 0]), np.array([-1.0, -3.0], np.float32))
    scores = fusion.scores(*features(MEMORY, beams, np.array([3, -1])))
    # log probabilities are those above the last beam's, less 1: 3 for item 4, 1 for item 0
    assert scores.tolist() == [1.0 + 0.5 + 1.0, 1.0, -np.inf, 2.0 - 8.0, 1.5 + 1.0]


def test_a_model_counts_a_quarter_for_new_items_with_texts():
    memory = ItemMemory.fit(["a", "b", "new", "bare"], np.array([0, 2]), np.array([0, 1]), texts=["red", "tea", "red", ""])
    beams = memory.beams(["new", "bare", "a"], np.array([-1.0, -2.0, -3.0], np.float32))
    nothing = MemoryScores(np.zeros(4, np.float32), np.zeros(4, np.float32), np.ones(4, np.bool_))
    found = features(nothing, beams, np.empty(0, np.int64))
    assert Fusion(log_prob=1.0, found=2.0).scores(*found).tolist() == [3.0, -np.inf, 5.0 / 4, 4.0]
    memory.observe(["a"], "new")
    assert memory.beams(["new"], np.zeros(1, np.float32)).new_k == [False]
    memory.insert(["late"], texts=["tea"])
    assert memory.beams(["late", "new", "b"], np.zeros(3, np.float32)).new_k.tolist() == [True, False, False]


def test_without_beams_or_memory_the_other_channel_is_left():
    fusion, none = Fusion(), Beams(np.empty(0, np.int64), np.empty(0, np.float32))
    nothing = MemoryScores(np.zeros(5, np.float32), np.zeros(5, np.float32), np.ones(5, np.bool_))
    alone = fusion.scores(*features(MEMORY, none, np.empty(0, np.int64)))
    assert np.isfinite(alone).tolist() == [True, True, False, True, False]
    beams = Beams(np.array([2, 1]), np.array([-1.0, -2.0], np.float32))
    order = np.argsort(-fusion.scores(*features(nothing, beams, np.empty(0, np.int64))))
    assert order[:2].tolist() == [2, 1]


def test_fit_recovers_the_weights_that_made_the_choices():
    rng = np.random.default_rng(0)
    truth = np.array([1.0, 3.0, 0.5, -1.0, -2.0])
    examples: list[Example] = []
    for _ in range(3000):
        x = np.concatenate([rng.random((3, 8)), rng.random((2, 8)) < 0.4]).astype(np.float32)
        utility = truth @ x + rng.gumbel(size=8)  # the softmax's noise
        examples.append(Example(x, int(utility.argmax())))
    fusion = Fusion.fit(examples)
    found = [fusion.transition, fusion.text, fusion.log_prob, fusion.found, fusion.seen]
    assert np.abs(np.array(found) - truth).max() < 0.3


def test_few_examples_change_little_and_none_nothing():
    assert Fusion.fit([]) == Fusion()
    example = Example(np.eye(5, 3, dtype=np.float32), 0)
    assert abs(Fusion.fit([example]).transition - Fusion().transition) < 0.2


def test_a_memory_keeps_its_fusion_and_damaged_weights_are_refused(tmp_path):
    memory = ItemMemory.fit(["a", "b"], np.array([0, 2]), np.array([0, 1]))
    memory.fusion = Fusions(removed=Fusion(seen=-3.0))
    memory.save(tmp_path / "memory")
    assert ItemMemory.load(tmp_path / "memory").fusion == memory.fusion
    data = (tmp_path / "memory").read_bytes()
    (tmp_path / "memory").write_bytes(data.replace(b'\\"seen\\": -3.0', b'\\"seen\\": NaN '))
    with pytest.raises(IndexFileError):
        ItemMemory.load(tmp_path / "memory")
    with pytest.raises(ArgumentError, match="finite"):
        Fusion(seen=float("inf"))
