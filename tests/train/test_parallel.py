"""Two processes that train one model (gloo), against one that does it alone."""

import dataclasses
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor

from leafbeam.errors import ArgumentError
from leafbeam.model import load_model, new_model
from leafbeam.train import Budget, Checkpoint, DataParallel, Recipe, Trainer, TrainOptions, leave_one_out, train
from tests.train.small_trainer import SIZES, TINY, all_codes, log_of, same, sids_of, trainer_of, walks, weights_of

PLAIN = dataclasses.replace(TINY, budget=Budget(steps=6), dropout=0.0, batch_tokens=45)


def one_of_two(rank: int, port: int, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.save(plainly() | shared(out), f"{out}/{rank}.pt")
    dist.destroy_process_group()


def plainly() -> dict[str, object]:
    trainer = trainer_of(PLAIN, parallel=DataParallel.join())
    losses = [trainer.step().loss for _ in range(6)]
    dropping = trainer_of(dataclasses.replace(PLAIN, dropout=0.3, budget=Budget(minutes=5)), parallel=DataParallel.join())
    for _ in range(3):
        dropping.step()
    return {
        "weights": weights_of(trainer.model),
        "losses": losses,
        "dropping": weights_of(dropping.model),
        "seconds": dropping.state.seconds,
    }


SHARDED = {
    "decoder": dataclasses.replace(PLAIN, clip_norm=0.1),
    "users": dataclasses.replace(PLAIN, num_users=7, user_dropout=0.0),
    "encoder-decoder": dataclasses.replace(PLAIN, architecture="encoder-decoder", tie_word_embeddings=False),
    "item-history": dataclasses.replace(PLAIN, architecture="item-history"),
}


def of_any(recipe: Recipe, parallel: DataParallel | None = None) -> Trainer:
    vocabulary = recipe.vocabulary(SIZES)
    model = new_model(recipe.model_config(vocabulary), vocabulary, torch.Generator().manual_seed(recipe.seed))
    ids = np.arange(60) if recipe.num_users else None
    return Trainer(model, walks(60), all_codes(), recipe, parallel=parallel, user_ids=ids)


def shop() -> tuple[object, ...]:
    items = [f"i{number:02}" for number in range(20)]
    log = log_of([[items[(user + step) % 20] for step in range(3 + user % 5)] for user in range(40)])
    return log, leave_one_out(log), sids_of(items), dataclasses.replace(PLAIN, validations=2)


def shared(out: str) -> dict[str, object]:
    parallel = DataParallel.join(shard=True)
    found: dict[str, object] = {}
    for name, recipe in SHARDED.items():
        trainer = of_any(recipe, parallel)
        losses = [trainer.step().loss for _ in range(3)]
        weights = list(trainer.model.parameters())
        assert all(isinstance(weight, DTensor) for weight in weights)
        here = sum(weight.to_local().numel() for weight in weights)  # pyright: ignore[reportAttributeAccessIssue]
        trainer._save(f"{out}/{name}")
        dist.barrier()
        resumed = of_any(recipe, parallel)
        resumed.resume(Checkpoint.load(f"{out}/{name}"))
        ends = [weights_of(one.full_model()) for one in (trainer, resumed) if one.run() is None]
        assert same(*ends)
        found[name] = {"losses": losses, "weights": ends[0], "share": here / sum(weight.numel() for weight in weights)}
    model = train(*shop(), f"{out}/run", options=TrainOptions(parallel=parallel))  # pyright: ignore[reportArgumentType]
    return found | {"trained": weights_of(model)}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have left, of both kinds."""
    directory = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(one_of_two, args=(port, str(directory)), nprocs=2)
    return directory


@pytest.mark.slow
def test_two_processes_with_sharded_weights_learn_what_one_learns(out: Path):
    first, second = (torch.load(out / f"{rank}.pt") for rank in range(2))
    for name, recipe in SHARDED.items():
        alone = of_any(recipe)
        losses = [alone.step().loss for _ in range(3)]
        assert first[name]["losses"] == second[name]["losses"]
        np.testing.assert_allclose(first[name]["losses"], losses, rtol=1e-4)
        assert 0.4 < first[name]["share"] < 0.6
        assert same(first[name]["weights"], second[name]["weights"])
        resumed = of_any(recipe)  # alone, from what the two have saved
        resumed.resume(Checkpoint.load(out / name))
        for one in (alone, resumed):
            one.run()
            for weight_name, weight in weights_of(one.model).items():
                torch.testing.assert_close(first[name]["weights"][weight_name], weight, rtol=1e-3, atol=5e-5)
    read = load_model(out / "run" / "model")
    assert same(weights_of(read), first["trained"])
    trained = train(*shop())  # pyright: ignore[reportArgumentType]
    for name, weight in weights_of(trained).items():
        torch.testing.assert_close(first["trained"][name], weight, rtol=1e-3, atol=5e-5)


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(out: Path):
    first, second = (torch.load(out / f"{rank}.pt") for rank in range(2))
    alone = trainer_of(PLAIN)
    losses = [alone.step().loss for _ in range(6)]
    np.testing.assert_allclose(first["losses"], losses, rtol=1e-4)
    for name, weight in weights_of(alone.model).items():
        torch.testing.assert_close(first["weights"][name], weight, rtol=1e-3, atol=2e-5)
    for kind in ("weights", "dropping"):
        assert all(torch.equal(first[kind][name], second[kind][name]) for name in first[kind])
    assert first["seconds"] == second["seconds"] > 0  # one clock, though each process has its own


def test_the_local_rows_of_all_processes_are_the_batch():
    items = np.arange(15, dtype=np.int32).reshape(5, 3)
    parts = [DataParallel(rank=rank, size=2).local_rows(items) for rank in range(2)]
    assert sorted(np.concatenate([part[0] for part in parts]).ravel().tolist()) == list(range(15))
    assert [weight for _, weight in parts] == [0.6, 0.4]
    local, weight = DataParallel(rank=1, size=2).local_rows(items[:1])
    assert (local.shape, weight) == ((1, 3), 0.0)


def test_without_a_process_group_there_is_nothing_to_join():
    with pytest.raises(ArgumentError, match="torchrun"):
        DataParallel.join()
