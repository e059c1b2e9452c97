"""Two processes that train one model (gloo), against one that does it alone."""

import dataclasses
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from pleach.errors import ArgumentError
from pleach.train.parallel import DataParallel
from pleach.train.recipe import Budget
from tests.train.test_trainer import TINY, trainer_of, weights_of

PLAIN = dataclasses.replace(TINY, budget=Budget(steps=6), dropout=0.0, batch_tokens=45)


def one_of_two(rank: int, port: int, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    trainer = trainer_of(PLAIN, parallel=DataParallel.join())
    losses = [trainer.step().loss for _ in range(6)]
    dropping = trainer_of(dataclasses.replace(PLAIN, dropout=0.3, budget=Budget(minutes=5)), parallel=DataParallel.join())
    for _ in range(3):
        dropping.step()
    torch.save(
        {
            "weights": weights_of(trainer.model),
            "losses": losses,
            "dropping": weights_of(dropping.model),
            "seconds": dropping.place.seconds,
        },
        f"{out}/{rank}.pt",
    )
    dist.destroy_process_group()


def test_two_processes_learn_what_one_learns(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(one_of_two, args=(port, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    alone = trainer_of(PLAIN)
    losses = [alone.step().loss for _ in range(6)]
    np.testing.assert_allclose(first["losses"], losses, rtol=1e-4)
    for name, weight in weights_of(alone.model).items():
        torch.testing.assert_close(first["weights"][name], weight, rtol=1e-3, atol=2e-5)
    for kind in ("weights", "dropping"):
        assert all(torch.equal(first[kind][name], second[kind][name]) for name in first[kind])
    assert first["seconds"] == second["seconds"] > 0  # one clock, though each process has its own


def test_each_process_has_its_part_and_together_they_have_all():
    items = np.arange(15, dtype=np.int32).reshape(5, 3)
    parts = [DataParallel(rank=rank, size=2).part(items) for rank in range(2)]
    assert sorted(np.concatenate([part[0] for part in parts]).ravel().tolist()) == list(range(15))
    assert [weight for _, weight in parts] == [0.6, 0.4]
    mine, weight = DataParallel(rank=1, size=2).part(items[:1])
    assert (mine.shape, weight) == ((1, 3), 0.0)


def test_without_a_process_group_there_is_nothing_to_join():
    with pytest.raises(ArgumentError, match="torchrun"):
        DataParallel.join()
