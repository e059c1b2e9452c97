"""A decode in fixed shapes equals BeamSearch over a DecodeSession, whatever its buffers hold, and reads no value."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.serving.torch_index import TorchIndex
from leafbeam import Trie
from leafbeam.decode import SearchResult
from leafbeam.decode.beam_search import result_of
from leafbeam.decode.results import collect_items
from leafbeam.engine.graphs.static_decode import Bucket, DeviceIndex, StaticDecode
from leafbeam.errors import LogitsError
from leafbeam.index import Version
from leafbeam.model import (
    AnyModel,
    TokenTable,
    Vocabulary,
)
from leafbeam.model.experts import Experts
from leafbeam.model.static_model import StaticModel
from leafbeam.ops.attention import reference
from leafbeam.ops.attention import triton as attention_kernels
from leafbeam.ops.attention.types import Attention
from tests.fixtures.static_runs import (
    SIZES,
    Asked,
    drawn_boost,
    new_encoder_decoder,
    new_model,
    new_version,
    same,
    searched,
    shifted,
)


def decoded(decode: StaticDecode, version: Version, asked: Asked, run: Callable[[], None] | None = None) -> SearchResult:
    """What a static decode finds."""
    inputs, num_beams = asked.inputs(version), decode.bucket.num_beams
    assert decode.load(inputs)
    (run or decode.run)()
    trace = decode.trace(len(inputs.requests), len(version.segments))
    return result_of(trace, partial(collect_items, version, inputs.requests), decode.config, num_beams, boosts=asked.boosts)


def poison(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.fill_(torch.nan if tensor.is_floating_point() else 2**40)


def new_decode(
    model: AnyModel, version: Version, bucket: Bucket, kind: Any = TorchIndex, attention: Attention | None = None, **room: int
) -> StaticDecode:
    index = kind(version, "cpu", **room)
    return StaticDecode(StaticModel(model, attention), index, bucket)


@pytest.mark.parametrize("seed", range(10))  # from 6 on: an encoder-decoder; the last two: one vector an item
def test_it_finds_what_beam_search_finds_again_and_again(seed: int) -> None:
    rng = np.random.default_rng([seed, 5])
    vocabulary: Any = Vocabulary(codebook_sizes=SIZES)
    if seed in (2, 5):  # tokens anywhere in a large vocabulary
        tokens = rng.permutation(np.arange(3, 99))[: sum(SIZES)]
        levels = tuple(tuple(level.tolist()) for level in np.split(tokens, np.cumsum(SIZES)[:-1]))
        vocabulary = TokenTable(tokens_per_level=levels, size=100, pad=0, bos=1, eos=2)
    model: Any = new_encoder_decoder(seed, vocabulary) if seed in (6, 7) else new_model(seed, vocabulary)
    if seed > 7:
        model = new_model(seed, vocabulary, item_history=True, num_hidden_layers=seed - 7)
    version = new_version(rng, num_delta=40 * (seed % 2))
    scoring: Any = ("full", "allowed")[seed % 2 if seed > 5 else seed // 2 % 2]
    bucket = Bucket(batch=4, length=32, num_beams=int(rng.choice([1, 7, 64])), scoring=scoring)
    decode = new_decode(model, version, bucket, delta_leaves=64 * (seed % 4 == 0))
    for batch in (4, 1, 3):
        asked = Asked.drawn(rng, version, vocabulary, batch, int(rng.integers(1, 33)), boosted=batch > 1)
        poison((*decode.inputs, *decode.outputs))
        same(decoded(decode, version, asked), searched(model, version, asked, bucket.num_beams, scoring))


@pytest.mark.parametrize("seed", range(3))
def test_a_decode_of_experts_equals_the_search(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By blocks of one expert's tokens, as while a graph is captured: no value is read on the host."""
    rng = np.random.default_rng(seed)
    model: Any = new_encoder_decoder(seed, Vocabulary(codebook_sizes=SIZES), num_experts=3)
    version = new_version(rng)
    bucket = Bucket(batch=2, length=16, num_beams=7, scoring="full")
    asked = Asked.drawn(rng, version, model.vocabulary, 2, 9)
    expected = searched(model, version, asked, 7, "full")
    monkeypatch.setattr(Experts, "_run_by_expert", Experts.run_blocks)
    same(decoded(new_decode(model, version, bucket), version, asked), expected)


@pytest.mark.slow
def test_what_waits_in_the_trays_is_all_that_a_run_knows() -> None:
    """Traced as operations on tensors, with every input made new: what a graph would hold."""
    rng = np.random.default_rng(8)
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    model, version = new_model(2, vocabulary, num_hidden_layers=1), new_version(rng)
    decode = new_decode(model, version, Bucket(batch=2, length=10, num_beams=6, scoring="full"))
    first, second = (Asked.drawn(rng, version, vocabulary, 2, 10) for _ in range(2))
    decoded(decode, version, first)

    def work(_: torch.Tensor) -> torch.Tensor:
        decode.run()
        return decode.num_valid_B

    traced = make_fx(work, tracing_mode="real")(torch.zeros(1))
    with torch.inference_mode():
        same(decoded(decode, version, second, lambda: traced(torch.zeros(1))), searched(model, version, second, 6, "full"))


@pytest.mark.parametrize(("scoring", "num_delta"), [pytest.param("full", 0, marks=pytest.mark.slow), ("allowed", 30)])
def test_nobody_waits_for_a_value(scoring: Any, num_delta: int) -> None:
    """Tensors without contents have nothing to look at: an item(), a nonzero() or a shape that depends on data raises."""
    rng = np.random.default_rng(4)
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    model, version = new_model(3, vocabulary, num_hidden_layers=1), new_version(rng, num_delta=num_delta)
    others = new_encoder_decoder(3, vocabulary), new_model(3, vocabulary, item_history=True)
    bucket = Bucket(batch=2, length=12, num_beams=8, scoring=scoring)
    with FakeTensorMode(allow_non_fake_inputs=True):
        new_decode(model, version, bucket).run()

        def looks(*arguments: torch.Tensor) -> torch.Tensor:
            assert float(arguments[0].sum()) >= 0
            return reference.attend(*arguments)

        for other in others:
            new_decode(other, version, bucket).run()
        with pytest.raises(DataDependentOutputException):
            new_decode(model, version, bucket, attention=dataclasses.replace(reference.attention(), over_both=looks)).run()


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_sequences_that_ended_stay_as_they_are(scoring: Any) -> None:
    rng = np.random.default_rng(6)
    sizes, end = (7, 7, 7), 6
    codes = rng.integers(0, end, (60, 3))
    codes[np.arange(3) >= rng.integers(1, 3, 60)[:, None]] = end
    version = Version.of(Trie.build(codes, sizes, end_code=end))
    vocabulary = Vocabulary(codebook_sizes=sizes)
    model = new_model(8, vocabulary)
    index = TorchIndex(version, "cpu")
    bucket = Bucket(batch=2, length=10, num_beams=20, scoring=scoring)
    decode = StaticDecode(StaticModel(model), index, bucket, end_code=end)
    tokens_BT, lengths_B = vocabulary.prompts([codes[:2], codes[:3]])
    asked = Asked(tokens_BT=tokens_BT, lengths_B=lengths_B, filters=[None, None], deny=[None, [3, 4]])
    same(decoded(decode, version, asked), searched(model, version, asked, 20, scoring))


class Touched(TorchDispatchMode):
    """Which kinds of device the tensors of each operation are on."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: list[set[str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves((args, kwargs or {}, out)) if isinstance(one, torch.Tensor)]
        self.devices.append({one.device.type for one in tensors})
        return out


def without_contents(value: Any) -> Any:
    """What holds tensors, with tensors on the meta device in their place: shapes, and nothing that could be read."""
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, list | tuple):
        return type(value)(without_contents(one) for one in value)
    if isinstance(value, torch.nn.Module):
        return value.to("meta")
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith("leafbeam.ops"):
        return dataclasses.replace(value, **{name: without_contents(inner) for name, inner in vars(value).items()})
    if type(value).__module__.startswith(
        ("leafbeam.engine", "leafbeam.model.static_model", "benchmarks.serving.torch_index")
    ) and hasattr(value, "__dict__"):
        for name, inner in vars(value).items():
            setattr(value, name, without_contents(inner))
    return value


@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("kind", [new_model, new_encoder_decoder, partial(new_model, item_history=True)])
def test_nothing_comes_from_the_host(scoring: Any, kind: Callable[[int, Any], AnyModel]) -> None:
    """Copies from the host's memory could not be captured: of all operations of a run none has a tensor there."""
    rng = np.random.default_rng(4)
    version = new_version(rng, num_delta=30)
    model = kind(3, Vocabulary(codebook_sizes=SIZES))
    decode = without_contents(new_decode(model, version, Bucket(batch=2, length=12, num_beams=8, scoring=scoring)))
    with Touched() as touched:
        decode.run()
    assert len(touched.devices) > 300
    assert set().union(*touched.devices) == {"meta"}


@pytest.mark.parametrize("scoring", ["full", pytest.param("allowed", marks=pytest.mark.slow)])
def test_what_a_gpu_runs_finds_the_same(scoring: Any) -> None:
    """The Triton kernels of step and attention, under the interpreter."""
    rng = np.random.default_rng(12)
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    model, version = new_model(4, vocabulary, num_hidden_layers=1), new_version(rng, 60, num_delta=15)
    bucket = Bucket(batch=2, length=8, num_beams=4, scoring=scoring)
    decode = new_decode(model, version, bucket, DeviceIndex, attention_kernels.attention())
    poison((*decode.inputs, *decode.outputs))
    asked = dataclasses.replace(Asked.drawn(rng, version, vocabulary, 1, 8), boosts=[None])
    while asked.boosts == [None]:
        asked.boosts[:] = [drawn_boost(rng, version)]
    same(decoded(decode, version, asked), searched(model, version, asked, bucket.num_beams, scoring))


@pytest.mark.parametrize(
    "kind", [partial(new_encoder_decoder, num_decoder_layers=1), partial(new_model, item_history=True, num_hidden_layers=1)]
)
def test_what_a_gpu_runs_of_other_architectures_finds_the_same(kind: Callable[[int, Any], AnyModel]) -> None:
    """The Triton kernels of attention over the prompt and the codes alone, and over items, under the interpreter."""
    rng = np.random.default_rng(13)
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    model, version = kind(5, vocabulary), new_version(rng, 40)
    decode = new_decode(
        model, version, Bucket(batch=1, length=4, num_beams=3, scoring="full"), TorchIndex, attention_kernels.attention()
    )
    asked = Asked.drawn(rng, version, vocabulary, 1, 4)
    same(decoded(decode, version, asked), searched(model, version, asked, 3, "full"))


@pytest.mark.parametrize("kind", [TorchIndex, DeviceIndex])
def test_a_version_of_equal_sizes_takes_the_place_of_the_last(kind: Any) -> None:
    rng = np.random.default_rng(9)
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    model = new_model(5, vocabulary)
    first = new_version(rng, 90, 12)
    second, other = shifted(first), Version(segments=first.segments[:1])
    index = kind(first, "cpu")
    decode = StaticDecode(StaticModel(model), index, Bucket(batch=2, length=8, num_beams=3, scoring="full"))
    arrays = index.prepare(second)
    asked = Asked.drawn(rng, first, vocabulary, 2, 8)
    same(decoded(decode, first, asked), searched(model, first, asked, 3, "full"))
    assert index.fits(arrays)
    index.replace(arrays)
    asked = Asked.drawn(rng, second, vocabulary, 2, 8)
    same(decoded(decode, second, asked), searched(model, second, asked, 3, "full"))
    kept = Version(segments=(second.segments[0], shifted(second).segments[1]))  # the base stays, the delta does not
    arrays = index.prepare(kept)
    assert index.fits(arrays)
    index.replace(arrays)
    same(decoded(decode, kept, asked := Asked.drawn(rng, kept, vocabulary, 2, 8)), searched(model, kept, asked, 3, "full"))
    assert index.fits(index.prepare(other)) == (kind is TorchIndex)  # a room once made for a delta stays
    assert not index.fits(index.prepare(new_version(rng, 3000, 12)))


@pytest.mark.parametrize("poisoned", [np.nan, np.inf])
def test_a_model_that_gives_no_numbers_is_named(poisoned: float) -> None:
    rng = np.random.default_rng(2)
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    model, version = new_model(6, vocabulary), new_version(rng)
    decode = new_decode(model, version, Bucket(batch=2, length=8, num_beams=5, scoring="full"))
    asked = dataclasses.replace(Asked.drawn(rng, version, vocabulary, 2, 8), filters=[None] * 2, deny=[None] * 2)
    decoded(decode, version, asked)
    before = model.lm_head.weight[vocabulary.offsets[1]].clone()
    with torch.no_grad():
        model.lm_head.weight[vocabulary.offsets[1]] = poisoned
    with pytest.raises(LogitsError, match=r"request 0, beam [0-4] at level 1 hold NaN or"):
        decoded(decode, version, asked)
    with torch.no_grad():
        model.lm_head.weight[vocabulary.offsets[1]] = before
    same(decoded(decode, version, asked), searched(model, version, asked, 5, "full"))


def test_more_denied_items_than_there_is_room_for_are_refused() -> None:
    rng = np.random.default_rng(2)
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    version = new_version(rng, 2000)
    decode = new_decode(new_model(6, vocabulary), version, Bucket(batch=2, length=8, num_beams=5, scoring="full"))
    tokens_BT, lengths_B = vocabulary.prompts([[]])
    asked = Asked(tokens_BT=tokens_BT, lengths_B=lengths_B, filters=[None], deny=[np.arange(2000)])
    assert not decode.load(asked.inputs(version))
