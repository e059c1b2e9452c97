"""A mixture of experts against a loop over tokens, and its load-balancing loss."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from leafbeam.model.config import EncoderDecoderConfig
from leafbeam.model.experts import Experts
from leafbeam.model.t5 import experts_of


def experts(generator: torch.Generator, **fields: object) -> Experts:
    sizes: dict[str, object] = {"vocab_size": 9, "d_model": 12, "d_ff": 20, "num_experts": 5}
    layer = experts_of(EncoderDecoderConfig(**(sizes | fields))).to_empty(device="cpu")  # type: ignore[arg-type]
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_(0, 0.5, generator=generator)
    return layer


def token_by_token(layer: Experts, hidden_ND: Tensor) -> Tensor:
    rows: list[Tensor] = []
    for token in hidden_ND:
        shares = (layer.router.weight @ token).softmax(0)
        chosen = shares.argsort(descending=True)[: layer.num_chosen].tolist()
        total = shares[chosen].sum() if layer.normed else torch.ones(())
        answer = torch.zeros_like(token)
        for one in chosen:
            inner = layer.wi_0[one] @ token
            inner = inner.clamp(min=0) if layer.wi_1 is None else inner * inner.sigmoid() * (layer.wi_1[one] @ token)
            answer = answer + shares[one] / total * (layer.wo[one] @ inner)
        rows.append(answer)
    return torch.stack(rows)


@pytest.mark.parametrize("chosen", [1, 2, 5])
@pytest.mark.parametrize("kind", ["relu", "gated-silu"])
@pytest.mark.parametrize("normed", [False, True])
def test_each_token_gets_the_weighted_sum_of_its_experts(
    generator: torch.Generator, poisoned: None, chosen: int, kind: str, normed: bool
):
    layer = experts(generator, num_experts_per_tok=chosen, feed_forward_proj=kind, norm_topk_prob=normed)
    hidden = torch.randn(3, 7, 12, generator=generator, requires_grad=True)
    again = hidden.detach().clone().requires_grad_()
    found, truth = layer(hidden), token_by_token(layer, again.flatten(0, 1)).view(3, 7, 12)
    torch.testing.assert_close(found, truth, atol=1e-5, rtol=1e-5)
    direction = torch.randn(3, 7, 12, generator=generator)
    mine = torch.autograd.grad((found * direction).sum(), [hidden, *layer.parameters()])
    theirs = torch.autograd.grad((truth * direction).sum(), [again, *layer.parameters()])
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


class _NoLook(TorchDispatchMode):
    """Fails where a value is read on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "nonzero", "bincount", "masked_select", "unique2")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [1, 7, 40, 300])
@pytest.mark.parametrize("kind", ["relu", "gated-silu"])
@pytest.mark.parametrize("num_experts", [2, 5, 40])
def test_blocks_of_a_captured_decode_equal_experts_one_by_one(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch, rows: int, kind: str, num_experts: int
) -> None:
    """No value is read on the host, and no token is dropped, however unevenly the router chooses."""
    layer = experts(generator, num_experts=num_experts, feed_forward_proj=kind)
    for spread in (0.0, 3.0):
        hidden = torch.randn(rows, 12, generator=generator) + spread
        with torch.inference_mode():
            expected = layer(hidden)
            monkeypatch.setattr(Experts, "_run_by_expert", Experts.run_blocks)
            with _NoLook():
                found = layer(hidden)
            monkeypatch.undo()
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_tokens_output_does_not_depend_on_its_batch(generator: torch.Generator):
    layer = experts(generator)
    hidden = torch.randn(40, 12, generator=generator)
    together = layer(hidden)
    for row in (0, 17, 39):
        torch.testing.assert_close(layer(hidden[row : row + 1])[0], together[row], atol=1e-6, rtol=1e-6)


def test_the_load_balancing_loss_is_1_when_even_and_the_number_of_experts_when_one_takes_all(generator: torch.Generator):
    layer = experts(generator, num_experts_per_tok=1)
    with torch.no_grad():
        layer.router.weight.zero_()
        layer.router.weight[:, :5] = torch.eye(5) * 50
    even, balance = F.one_hot(torch.arange(20) % 5, 12).float(), list[Tensor]()
    layer(even, balance)
    layer(even[:1].expand(20, 12), balance)
    assert balance[0].item() == pytest.approx(1, abs=1e-4)
    assert balance[1].item() == pytest.approx(5, abs=1e-4)


def test_the_load_balancing_loss_spreads_the_tokens(generator: torch.Generator):
    layer = experts(generator, num_experts_per_tok=1)
    with torch.no_grad():
        layer.router.weight[0] += 1.0
    hidden = torch.rand(200, 12, generator=generator)
    optimizer = torch.optim.SGD(layer.router.parameters(), lr=1.0)
    seen: list[float] = []
    for _ in range(60):
        balance: list[Tensor] = []
        layer(hidden, balance)
        optimizer.zero_grad()
        balance[0].backward()
        optimizer.step()
        seen.append(balance[0].item())
    assert seen[0] > 3.0
    assert seen[-1] < 1.5


def test_no_tokens_give_no_output(generator: torch.Generator):
    balance: list[Tensor] = []
    assert experts(generator)(torch.zeros(0, 3, 12), balance).shape == (0, 3, 12)
