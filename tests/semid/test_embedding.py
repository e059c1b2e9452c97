"""Embeddings: their text and co-occurrence parts, and that held-out interactions never reach them."""

import builtins
import importlib
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from leafbeam.errors import ArgumentError, DataError, MissingExtraError
from leafbeam.semid import EmbeddingConfig, embed, fit_sids, text_columns, text_vectors
from leafbeam.semid import embedder as embedders
from leafbeam.semid.embedder import sentence_vectors
from leafbeam.semid.embedding import behaviour_vectors, positive_pmi
from leafbeam.train import InteractionLog, leave_one_out, log_from_tables

WORDS = ["red", "blue", "shoe", "boot", "tea", "green", "silk", "old"]
CONFIG = EmbeddingConfig(text_dims=6, behaviour_dims=5)


def shop(num_items: int = 40) -> pa.Table:
    rng = np.random.default_rng(0)
    titles = [" ".join(rng.choice(WORDS, 3)) for _ in range(num_items)]
    return pa.table({"item_id": list(range(num_items)), "title": titles})


def sessions_of(histories: list[list[int]]) -> SimpleNamespace:
    ptr = np.cumsum([0, *map(len, histories)])
    return SimpleNamespace(indptr_U1=ptr, items_E=np.array([item for h in histories for item in h], np.int32))


def log_of(histories: list[list[int]]) -> InteractionLog:
    rows = [(user, item, time) for user, items in enumerate(histories) for time, item in enumerate(items)]
    users, items, times = zip(*rows, strict=True)
    return log_from_tables(pa.table({"user_id": users, "item_id": items, "timestamp": times}), shop())


def test_held_out_interactions_change_no_embedding_and_no_sid():
    rng = np.random.default_rng(1)
    histories = [rng.integers(0, 40, rng.integers(3, 9)).tolist() for _ in range(150)]
    other = [history[:-2] + rng.integers(0, 40, 2).tolist() for history in histories]
    assert any(a != b for a, b in zip(histories, other, strict=True))
    first, second = leave_one_out(log_of(histories)), leave_one_out(log_of(other))
    assert (first.test_U != second.test_U).any()
    assert (first.valid_U != second.valid_U).any()
    vectors = [embed(shop(), split.train, config=CONFIG).vectors_ND for split in (first, second)]
    assert vectors[0].tobytes() == vectors[1].tobytes()
    codes = [fit_sids(shop(), split.train, embedding=CONFIG).table.codes for split in (first, second)]
    assert (codes[0] == codes[1]).all()


def test_training_interactions_change_the_embedding():
    rng = np.random.default_rng(2)
    histories = [rng.integers(0, 40, 6).tolist() for _ in range(150)]
    other = [[*rng.integers(0, 40, 1).tolist(), *history[1:]] for history in histories]
    vectors = [embed(shop(), leave_one_out(log_of(h)).train, config=CONFIG).vectors_ND for h in (histories, other)]
    assert (vectors[0] != vectors[1]).any()


def test_equal_seeds_give_equal_bits():
    sessions = sessions_of([[0, 1, 2], [2, 3, 0], [4, 5]])
    vectors = [embed(shop(), sessions, config=CONFIG, seed=seed).vectors_ND for seed in (3, 3)]
    assert vectors[0].tobytes() == vectors[1].tobytes()


def test_the_parts_have_the_lengths_that_behaviour_weight_sets():
    items = shop().append_column("price", pa.array([1.0] * 40))
    sessions = sessions_of([list(range(38)), list(range(37, -1, -2))])
    made = embed(items, sessions, config=EmbeddingConfig(text_dims=6, behaviour_dims=5, behaviour_weight=0.25, neighbours=0))
    np.testing.assert_allclose(np.linalg.norm(made.vectors_ND[:, :6], axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(made.vectors_ND[:38, 6:], axis=1), 0.25, rtol=1e-5)
    assert (made.vectors_ND[38:, 6:] == 0).all()
    assert (made.items_without_text, made.items_without_behaviour, made.text_columns) == (0, 2, ("title",))


def test_a_new_item_gets_the_mean_cooccurrence_of_the_nearest_items_by_text():
    titles = [
        "red shoe",
        "red silk shoe",
        "red boot",
        "green tea",
        "old green tea",
        "tea",
        "new red shoe",
        "new green tea",
        "?",
    ]
    items = pa.table({"item_id": range(9), "title": titles})
    sessions = sessions_of([[0, 1, 2]] * 4 + [[3, 4, 5]] * 4)
    config = EmbeddingConfig(text_dims=20, behaviour_dims=2, neighbours=2)
    made = embed(items, sessions, config=config)
    behaviour = made.vectors_ND[:, -2:] / config.behaviour_weight
    alike = behaviour @ behaviour.T
    assert alike[6, :3].min() > 0.9 > 0.1 > np.abs(alike[6, 3:6]).max()
    assert alike[7, 3:6].min() > 0.9 > 0.1 > np.abs(alike[7, :3]).max()
    np.testing.assert_allclose(np.linalg.norm(behaviour[6:8], axis=1), 1, rtol=1e-5)
    assert (behaviour[8] == 0).all()
    assert made.items_without_behaviour == 3
    apart = embed(items, sessions, config=EmbeddingConfig(text_dims=20, behaviour_dims=2, neighbours=0))
    assert (apart.vectors_ND[6:, -2:] == 0).all()


def test_pmi_counts_pairs_within_the_window_as_a_plain_loop_does():
    rng = np.random.default_rng(4)
    histories = [rng.integers(0, 9, rng.integers(0, 8)).tolist() for _ in range(30)]
    counts = np.zeros((9, 9))
    for history in histories:
        for i, left in enumerate(history):
            for right in history[i + 1 : i + 4]:
                if left != right:
                    counts[left, right] += 1
                    counts[right, left] += 1
    totals = counts.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.nan_to_num(np.maximum(0, np.log(counts * counts.sum() / np.outer(totals, totals))), nan=0.0)
    found = positive_pmi(sessions_of(histories), 9, window=3).toarray()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_items_of_the_same_sessions_are_near_and_others_are_not():
    rng = np.random.default_rng(5)
    histories = [(rng.permutation(10)[:6] + 10 * (user % 2)).tolist() for user in range(300)]
    vectors = behaviour_vectors(sessions_of(histories), 20, dims=4, window=5, seed=0)
    alike = vectors @ vectors.T
    assert alike[:10, :10].mean() > 0.8
    assert abs(alike[:10, 10:].mean()) < 0.1


def test_text_that_shares_words_is_near_and_items_without_words_are_zero():
    titles = ["red silk shoe", "red silk boot", "green tea", "old green tea", "!!!", None]
    vectors = text_vectors(pa.table({"item_id": range(6), "title": titles}), ("title",), dims=4, seed=0)
    alike = vectors @ vectors.T
    assert alike[0, 1] > 0.4 > alike[0, 2]
    assert alike[2, 3] > 0.4
    assert (vectors[4:] == 0).all()


def test_columns_of_words_are_found_and_numbers_urls_and_ids_are_not():
    items = pa.table(
        {
            "item_id": ["a", "b", "c"],
            "title": ["red shoe", None, "tea 2"],
            "tags": [["x", "y"], None, []],
            "price": ["12.0", "$3.99", None],
            "image": ["https://example.org/a.jpg", "http://example.org/b", None],
            "stock": [1, 2, 3],
            "nothing": pa.array([None, None, None], pa.string()),
            "brand": pa.array(["A", "A", "B"]).dictionary_encode(),
        }
    )
    assert text_columns(items) == ("title", "tags", "brand")


def test_text_or_behaviour_alone_suffices():
    sessions = sessions_of([[0, 1, 2, 3]])
    bare = pa.table({"item_id": range(5)})
    assert embed(shop(), None, config=CONFIG).items_without_behaviour == 40
    assert embed(bare, sessions, config=CONFIG).items_without_text == 5
    assert embed(shop(), sessions, config=EmbeddingConfig(text="none", behaviour_dims=4)).text_columns == ()
    assert embed(shop(), sessions, config=EmbeddingConfig(behaviour_dims=0)).items_without_behaviour == 40


def test_nothing_to_embed_is_named():
    for call, message in (
        (
            lambda: embed(pa.table({"item_id": [1, 2], "price": [1.0, 2.0]}), None, config=CONFIG),
            "nothing to make vectors from",
        ),
        (
            lambda: embed(shop(), sessions_of([[1, 1], [2]]), config=EmbeddingConfig(text="none")),
            "no session has two different items",
        ),
        (lambda: embed(shop(), sessions_of([[1, 40]]), config=CONFIG), "40"),
        (
            lambda: embed(
                pa.table({"item_id": [1, 2], "title": ["!", "?"]}), None, config=EmbeddingConfig(text_columns=("title",))
            ),
            "holds a word",
        ),
        (lambda: embed(shop(), None, config=EmbeddingConfig(text_columns=("name",))), "no column 'name'"),
        (lambda: embed(shop(), None, config=EmbeddingConfig(text_columns=("item_id",))), "of type int64"),
    ):
        with pytest.raises(DataError, match=message):
            call()


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": ""},
        {"text_dims": 0},
        {"window": 0},
        {"behaviour_dims": -1},
        {"behaviour_weight": 0},
        {"behaviour_weight": np.nan},
    ],
)
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        EmbeddingConfig(**wrong)
    with pytest.raises(ArgumentError, match="nothing"):
        EmbeddingConfig(text="none", behaviour_dims=0)


def test_a_missing_sentence_transformers_names_the_command(monkeypatch):
    def refuse(name: str):
        raise ImportError(name)

    monkeypatch.setattr(embedders, "import_module", refuse)
    with pytest.raises(MissingExtraError, match="pip install sentence-transformers"):
        embed(shop(), None, config=EmbeddingConfig(text="some/model"))


def test_a_sentence_model_gives_rows_of_length_one_and_zeros_without_text(monkeypatch):
    class Model:
        def __init__(self, name: str) -> None:
            assert name == "some/model"

        def encode(self, words: list[str], show_progress_bar: bool) -> np.ndarray:
            return np.array([[len(word), 3.0] for word in words])

    real = importlib.import_module
    library = SimpleNamespace(SentenceTransformer=Model)
    monkeypatch.setattr(embedders, "import_module", lambda name: library if name == "sentence_transformers" else real(name))
    vectors = sentence_vectors(pa.table({"item_id": [1, 2], "title": ["four", ""]}), ("title",), model="some/model")
    np.testing.assert_allclose(vectors, [[0.8, 0.6], [0, 0]], rtol=1e-6)
    assert builtins.len(vectors) == 2
