"""Tokens of users: in training, in the prompts of an evaluation, in what is saved, and nowhere when there are none."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leafbeam.decode import BeamSearch
from leafbeam.engine import Engine, Request
from leafbeam.errors import ArgumentError, CheckpointError, RequestError
from leafbeam.index import Trie
from leafbeam.model import EncoderDecoder, TokenTable, Transformer, Vocabulary, load_model, new_model, vocabulary_from_dict
from leafbeam.train import Budget, Checkpoint, EvaluationConfig, Histories, Recipe, Trainer, evaluate, leave_one_out, train
from leafbeam.train.batches import Batches
from leafbeam.train.checkpoint import fingerprint
from tests.train.small_trainer import SIZES, TINY, all_codes, log_of, same, sids_of, walks, weights_of

USERS = dataclasses.replace(TINY, num_users=16, user_dropout=0.0, dropout=0.0, label_smoothing=0.0)
TWO_HALVES = dataclasses.replace(USERS, architecture="encoder-decoder")
ITEM_HISTORY = dataclasses.replace(USERS, architecture="item-history")
EACH = pytest.mark.parametrize("recipe", [USERS, TWO_HALVES, ITEM_HISTORY], ids=["decoder", "encoder-decoder", "item-history"])
VOCABULARY = Vocabulary(codebook_sizes=SIZES, num_users=16)


def trainer_of(recipe: Recipe = USERS, histories: Histories | None = None, *, user_ids: object = "each") -> Trainer:
    histories = walks(60) if histories is None else histories
    vocabulary = recipe.vocabulary(SIZES)
    model = new_model(recipe.model_config(vocabulary), vocabulary, torch.Generator().manual_seed(recipe.seed))
    ids = np.arange(len(histories)) if isinstance(user_ids, str) else user_ids
    return Trainer(model, histories, all_codes(), recipe, user_ids=ids)  # pyright: ignore[reportArgumentType]


def opposites(users: int) -> Histories:
    """Two items each; users of one parity go from item 3 to item 17, the others from 3 to 30: only who it is tells which."""
    items = np.stack([np.full(users, 3), np.where(np.arange(users) % 2, 30, 17)], axis=1).ravel()
    return Histories(indptr_U1=np.arange(users + 1) * 2, items_E=items, times_E=np.arange(2 * users))


def test_user_tokens_follow_the_levels_and_ids_are_hashed_as_text():
    assert VOCABULARY.offsets == Vocabulary(codebook_sizes=SIZES).offsets
    assert (VOCABULARY.no_user, VOCABULARY.size) == (14, 31)
    tokens = VOCABULARY.user_tokens([*range(500), None])
    assert set(tokens[:-1].tolist()) == set(range(15, 31))  # 500 ids reach every token
    assert tokens[-1] == 14
    assert np.array_equal(VOCABULARY.user_tokens([7, np.int64(8)]), VOCABULARY.user_tokens(["7", np.str_("8")]))


def test_prompts_carry_the_token_of_the_user_or_of_no_user():
    histories = [[[0, 1, 1]], []]
    tokens_BT, lengths_B = VOCABULARY.prompts(histories, ["ann", "bob"])
    assert lengths_B.tolist() == [5, 2]
    assert np.array_equal(tokens_BT[:, 1], VOCABULARY.user_tokens(["ann", "bob"]))
    assert np.array_equal(tokens_BT[0, 2:], VOCABULARY.tokens([[0, 1, 1]])[0])
    assert VOCABULARY.prompts(histories)[0][:, 1].tolist() == [VOCABULARY.no_user] * 2
    assert VOCABULARY.prompts([])[0].shape == (0, 2)


def test_invalid_users_are_named():
    with pytest.raises(ArgumentError, match="num_users=-1"):
        Vocabulary(codebook_sizes=SIZES, num_users=-1)
    with pytest.raises(ArgumentError, match="whole numbers"):
        Vocabulary(codebook_sizes=SIZES, num_users=2.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="two levels"):
        Vocabulary(codebook_sizes=(9,), num_users=4)
    with pytest.raises(ArgumentError, match="num_users"):
        dataclasses.replace(TINY, num_users=-3)
    with pytest.raises(ArgumentError, match="user_dropout"):
        dataclasses.replace(TINY, user_dropout=1.0)
    with pytest.raises(ArgumentError, match="2 users for 1 history"):
        VOCABULARY.prompts([[]], [1, 2])
    with pytest.raises(ArgumentError, match=r"not 1\.5"):
        VOCABULARY.user_tokens([1.5])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="no user tokens"):
        Vocabulary(codebook_sizes=SIZES).prompts([[]], [1])
    with pytest.raises(ArgumentError, match="no user tokens"):
        TokenTable(tokens_per_level=((3,), (4,)), size=9, pad=0, bos=1, eos=2).prompts([[]], [1])


def test_recipe_vocabulary_and_user_ids_have_to_agree():
    for call, message in (
        (lambda: trainer_of(user_ids=None), "num_users=16 without user_ids"),
        (lambda: trainer_of(TINY), "num_users=0 with user_ids"),
        (lambda: trainer_of(user_ids=np.arange(59)), "59 user_ids for 60 histories"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()
    plain = Vocabulary(codebook_sizes=SIZES)
    with pytest.raises(ArgumentError, match=r"num_users=16, the model's vocabulary 0.*recipe\.vocabulary"):
        Trainer(new_model(USERS.model_config(plain), plain), walks(60), all_codes(), USERS, user_ids=np.arange(60))


def test_every_window_has_its_user():
    histories = walks(40)
    for last_only in (False, True):
        epoch = Batches(histories=histories, max_items=3, num_levels=3, batch_tokens=60, seed=0, last_only=last_only).epoch(2)
        for number, items_BT in enumerate(epoch):
            for user, items in zip(epoch.users(number).tolist(), items_BT.tolist(), strict=True):
                assert ",".join(map(str, items)) in ",".join(map(str, histories[user].tolist()))
    empty_between = Histories(indptr_U1=np.array([0, 0, 2, 2, 2, 4, 4]), items_E=np.arange(4), times_E=np.arange(4))
    epoch = Batches(histories=empty_between, max_items=3, num_levels=3, batch_tokens=60, seed=0).epoch(0)
    assert sorted(user for number in range(len(epoch)) for user in epoch.users(number)) == [1, 4]


@EACH
def test_the_loss_is_the_cross_entropy_given_the_user_token(recipe: Recipe):
    trainer = trainer_of(recipe)
    model, codes = trainer.model.eval(), all_codes()
    items_BT, users = torch.tensor([[3, 17], [0, 39]]), VOCABULARY.user_tokens(["ann", "bob"])
    nats: list[torch.Tensor] = []
    for user, items in zip(users.tolist(), items_BT.tolist(), strict=True):
        for position in [1] if recipe is TWO_HALVES else range(2):
            begin = [model.vocabulary.bos, user, *model.vocabulary.tokens(codes[items[:position]].reshape(-1, 3)).reshape(-1)]
            target = model.vocabulary.tokens(codes[items[position]]).tolist()
            for level in range(3):
                if isinstance(model, EncoderDecoder):
                    hidden = model(torch.tensor([begin]), torch.tensor([target[:level]], dtype=torch.int64))[0, -1]
                else:
                    hidden = model(torch.tensor([[*begin, *target[:level]]]))[0, -1]
                nats.append(-torch.log_softmax(model.head(hidden, level).double(), -1)[codes[items[position], level]])
    by_hand = torch.stack(nats).sum().item() * 3 / len(nats)
    assert trainer.loss(items_BT, torch.as_tensor(users)).item() == pytest.approx(by_hand, rel=1e-5)


@EACH
def test_the_user_token_decides_where_histories_are_equal(recipe: Recipe):
    recipe = dataclasses.replace(recipe, num_users=2000, budget=Budget(steps=150), hidden_size=32)
    trainer = trainer_of(recipe, opposites(40))
    trainer.run()
    vocabulary = trainer.model.vocabulary
    prompts = vocabulary.prompts([all_codes()[[3]]] * 40, np.arange(40))
    first_code = trainer.model.start(*(torch.as_tensor(array) for array in prompts)).step_fn().argmax(-1).flatten()
    expected = all_codes()[np.where(np.arange(40) % 2, 30, 17), 0]
    assert expected.min() < expected.max()
    assert (first_code.numpy() == expected).mean() > 0.75  # but for two that share a token


def test_dropping_users_trains_the_token_of_no_user_and_only_then():
    for rate, moved in ((0.0, False), (0.5, True)):
        trainer = trainer_of(dataclasses.replace(USERS, tie_word_embeddings=False, weight_decay=0.0, user_dropout=rate))
        before = trainer.model.get_parameter("model.embed_tokens.weight")[VOCABULARY.no_user].detach().clone()
        trainer.run()
        after = trainer.model.get_parameter("model.embed_tokens.weight")[VOCABULARY.no_user]
        assert torch.equal(before, after) is not moved


def test_a_resumed_run_ends_with_the_same_bits_and_belongs_to_its_users(tmp_path: Path):
    recipe = dataclasses.replace(USERS, user_dropout=0.3)
    whole, begun, resumed = (trainer_of(recipe) for _ in range(3))
    whole.run()
    for _ in range(5):
        begun.step()
    begun.checkpoint().save(tmp_path / "checkpoint")
    saved = Checkpoint.load(tmp_path / "checkpoint")
    resumed.resume(saved)
    resumed.run()
    assert same(weights_of(whole.model), weights_of(resumed.model))
    with pytest.raises(CheckpointError, match="another log"):
        trainer_of(recipe, user_ids=np.arange(60)[::-1]).resume(saved)
    with pytest.raises(CheckpointError, match="num_users: 15, 16"):
        trainer_of(dataclasses.replace(recipe, num_users=15)).resume(saved)


def test_without_users_vocabulary_fingerprint_and_recipe_are_unchanged():
    plain = Vocabulary(codebook_sizes=SIZES)
    assert plain.to_dict() == {"kind": "ranges", "codebook_sizes": list(SIZES), "num_specials": 3}
    assert plain.size == 14
    assert TINY.vocabulary(SIZES) == plain
    assert vocabulary_from_dict(json.loads(json.dumps(VOCABULARY.to_dict()))) == VOCABULARY
    assert fingerprint(walks(60), all_codes()) == "d40ead83b08bbdf4"  # of before there were users
    former = json.loads(TINY.to_json())
    for name in ("num_users", "user_dropout"):
        del former[name]
    assert Recipe.from_json(json.dumps(former)) == TINY


@EACH
def test_train_saves_a_model_with_users_and_evaluate_passes_each_user(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
):
    items = [f"i{number:02}" for number in range(20)]
    log = log_of([[items[(user + step) % 20] for step in range(3 + user % 5)] for user in range(30)])
    split, sids = leave_one_out(log), sids_of(items)
    recipe = dataclasses.replace(recipe, validations=1)  # asks with users in training too
    model = train(log, split, sids, recipe, tmp_path)
    read = load_model(tmp_path / "model")
    assert read.vocabulary == model.vocabulary == recipe.vocabulary(SIZES)
    assert same(weights_of(read), weights_of(model))  # pyright: ignore[reportArgumentType]

    trie = Trie.build(sids.codes, sids.codebook_sizes, sids.item_ids)
    seen: set[tuple[bytes, int]] = set()
    start = type(read).start

    def watched(self: object, tokens_BT: torch.Tensor, lengths_B: torch.Tensor, **options: Any) -> object:
        seen.update((bytes(row[2:n]), row[1]) for row, n in zip(tokens_BT.tolist(), lengths_B.tolist(), strict=True))
        return start(read, tokens_BT, lengths_B, **options)

    monkeypatch.setattr(type(read), "start", watched)
    report = evaluate(read, trie, log, split, config=EvaluationConfig(unconstrained_users=5, num_beams=4, batch_users=7))
    histories = [sids.codes[split.before_test[user][-report.max_items :]] for user in range(30)]
    tokens_U = read.vocabulary.prompts([[]] * 30, log.user_ids)[0][:, 1]
    assert seen == {
        (bytes(read.vocabulary.tokens(history).ravel().tolist()), int(token))
        for history, token in zip(histories, tokens_U, strict=True)
    }
    assert len(set(tokens_U.tolist())) > 5


def test_the_longest_history_leaves_a_position_for_the_user_token():
    trainer = trainer_of()
    history = all_codes()[: USERS.max_items]
    prompts = trainer.model.vocabulary.prompts([history], [1])
    trainer.model.eval().start(*(torch.as_tensor(array) for array in prompts)).step_fn()
    assert trainer.model.config.max_position_embeddings == TINY.model_config(TINY.vocabulary(SIZES)).max_position_embeddings


def test_the_engine_passes_the_user_of_a_request(monkeypatch: pytest.MonkeyPatch):
    model, codes = trainer_of().model.eval(), all_codes()
    ids = np.array([f"i{item:02}" for item in range(len(codes))])
    engine = Engine(model, Trie.build(codes, SIZES, ids))
    engine.warm_up()
    history, users = ("i03", "i07"), ("ann", 7, "7", None)
    results = engine.recommend([Request(history=history, user=user, num_items=20, num_beams=20) for user in users])
    assert [result.read_user for result in results] == [True, True, True, False]
    tokens_BT, lengths_B = VOCABULARY.prompts([codes[[3, 7]]] * 4, users)
    search = BeamSearch(engine.trie, 20)
    rounds = model.start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B))
    truth = search.run(rounds.step_fn, batch_size=4)
    for row, result in enumerate(results):
        assert list(result.item_ids) == truth.item_ids[row].tolist()
        np.testing.assert_allclose(result.scores, truth.scores[row], atol=1e-5)
    assert results[1].scores == results[2].scores
    assert results[0].scores != results[3].scores


def test_a_model_without_user_tokens_ignores_users():
    model, codes = trainer_of(TINY, user_ids=None).model.eval(), all_codes()
    engine = Engine(model, Trie.build(codes, SIZES, np.arange(len(codes))))
    named, plain = engine.recommend([Request(history=(3,), user="ann"), Request(history=(3,))])
    assert not named.read_user
    assert named.item_ids == plain.item_ids


@pytest.mark.parametrize("user", [True, 1.5, ["ann"], b"ann", "\ud800"])
def test_an_invalid_user_id_is_refused(user: object):
    with pytest.raises(RequestError, match="user must be"):
        Request(user=user)  # type: ignore[arg-type]


def test_the_engine_passes_no_user_with_the_longest_history(monkeypatch: pytest.MonkeyPatch):
    model, codes = trainer_of().model.eval(), all_codes()
    ids = np.array([f"i{item:02}" for item in range(len(codes))])
    seen: list[list[int]] = []
    start = Transformer.start

    def watched(self: Transformer, tokens_BT: torch.Tensor, *rest: object, **named: object) -> object:
        seen.extend(tokens_BT.tolist())
        return start(self, tokens_BT, *rest, **named)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Transformer, "start", watched)
    engine = Engine(model, Trie.build(codes, SIZES, ids))
    results = engine.recommend([Request(history=tuple(ids.tolist()), num_items=5, keep_history=True), Request(num_items=5)])
    assert [len(result.item_ids) for result in results] == [5, 5]
    newest = VOCABULARY.tokens(codes[-USERS.max_items :]).ravel().tolist()
    assert [VOCABULARY.bos, VOCABULARY.no_user, *newest] in seen
    assert all(row[1] == VOCABULARY.no_user for row in seen)
