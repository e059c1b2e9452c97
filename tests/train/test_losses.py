"""The sampled loss of a wide last level against the loss over all of its codes."""

import numpy as np
import pytest
import torch

from leafbeam.train.losses import LevelTarget, SampledLevel, full_loss

ITEMS, PREFIXES, CODES, WIDTH = 90, 12, 70, 16


def codes() -> np.ndarray:
    """Items of 12 prefixes, whose last codes differ within a prefix."""
    rng = np.random.default_rng(0)
    rows = [
        np.column_stack([np.full(count, prefix), rng.permutation(CODES)[:count]])
        for prefix, count in enumerate(np.bincount(rng.integers(0, PREFIXES, ITEMS), minlength=PREFIXES))
    ]
    return np.concatenate(rows)


def batch(soft: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, LevelTarget]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(20, WIDTH, generator=generator, requires_grad=True)
    weight = torch.randn(CODES, WIDTH, generator=generator, requires_grad=True)
    items = torch.randint(ITEMS, (20,), generator=generator)
    table = torch.from_numpy(codes())
    soft_items = torch.randint(ITEMS, (20, 30), generator=generator)
    weights = torch.rand(20, 30, generator=generator).softmax(1) * (table[soft_items, 0] == table[items, 0][:, None])
    named = 30 if soft else 0
    target = LevelTarget(
        codes_P=table[items, 1], soft_PR=table[soft_items[:, :named], 1], weights_PR=weights[:, :named], weight=0.5
    )
    return hidden, weight, items, target


@pytest.mark.parametrize("soft", [False, True])
def test_with_all_codes_drawn_it_is_the_full_loss_with_the_same_gradients(soft: bool):
    hidden, weight, items, target = batch(soft)
    sampled = SampledLevel(codes(), CODES, drawn=CODES, device=torch.device("cpu"))
    loss = sampled.loss(hidden, weight, items, target, torch.Generator().manual_seed(0))
    found = torch.autograd.grad(loss, [hidden, weight])
    full = full_loss(hidden @ weight.T, target, label_smoothing=0.0)
    expected = torch.autograd.grad(full, [hidden, weight])
    assert loss.item() == pytest.approx(full.item(), rel=1e-5)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    if soft:
        assert loss.item() != pytest.approx(full_loss(hidden @ weight.T, batch(False)[3], label_smoothing=0.0).item(), rel=1e-3)


def test_the_mean_of_many_samples_is_near_the_full_loss():
    hidden, weight, items, target = batch(True)
    weight = weight.detach() * 0.3  # a large logit that is rarely drawn would make the mean converge slowly
    sampled, draws = SampledLevel(codes(), CODES, drawn=20, device=torch.device("cpu")), torch.Generator().manual_seed(0)
    losses = [sampled.loss(hidden, weight, items, target, draws).item() for _ in range(300)]
    assert np.std(losses) > 0
    assert np.mean(losses) == pytest.approx(full_loss(hidden @ weight.T, target, label_smoothing=0.0).item(), rel=0.03)
