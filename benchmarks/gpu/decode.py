"""Whole decodes on a GPU: what is captured finds what a search without a graph finds, then both times; two workers.

Parity in float32 with fresh catalogs, weights and prompts, and a second batch through the same graph. Times in bfloat16, from
prompts to items, by the clock. On a CPU stand-ins run: plain torch in the place of kernels, and of a replay.

Shapes: B requests, T tokens of a prompt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu.timing import Measured, attempt
from benchmarks.serving.torch_index import RunAgain, TorchIndex
from benchmarks.workloads import random_codes
from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.decode.beam_search import result_of
from leafbeam.decode.results import check_batch, collect_items
from leafbeam.engine.graphs.graph import CudaCapturer
from leafbeam.engine.graphs.static_decode import BatchInputs, Bucket, DeviceIndex, StaticDecode
from leafbeam.index import Trie, Version
from leafbeam.model import AnyModel, EncoderDecoder, EncoderDecoderConfig, ModelConfig, Transformer, Vocabulary
from leafbeam.model.static_model import StaticModel
from leafbeam.ops.attention import reference, triton
from leafbeam.ops.backend import IndexBindings
from leafbeam.ops.constrain import Scoring
from leafbeam.ops.head.types import Normalize

__all__ = ["Case", "Sizes", "measure", "measured_case", "milliseconds", "parity", "runs", "streams"]

Kind = Literal["decoder", "encoder-decoder"]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A model of `layers` of `hidden`, over `items` of `levels` codes below `codes`; B requests of T tokens, and beams."""

    items: int
    codes: int
    levels: int
    layers: int
    hidden: int
    requests: int
    tokens: int
    beams: int


REAL = Sizes(items=100_000, codes=2048, levels=4, layers=8, hidden=1024, requests=2, tokens=512, beams=128)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, an index, and a search of both."""

    device: torch.device
    model: AnyModel
    version: Version
    bindings: IndexBindings
    sizes: Sizes
    scoring: Scoring

    @classmethod
    def drawn(cls, device: torch.device, kind: Kind, scoring: Scoring, sizes: Sizes, dtype: torch.dtype) -> Case:
        codes = random_codes(np.random.default_rng(), "uniform", sizes.items, sizes.codes, sizes.levels)
        version = Version.of(Trie.build(codes, [sizes.codes] * sizes.levels))
        vocabulary, hidden = Vocabulary(codebook_sizes=(sizes.codes,) * sizes.levels), sizes.hidden
        generator, longest = torch.Generator(device).manual_seed(0), sizes.tokens + sizes.levels
        model: AnyModel
        if kind == "decoder":
            config = ModelConfig(
                vocab_size=vocabulary.size,
                hidden_size=hidden,
                intermediate_size=3 * hidden,
                num_hidden_layers=sizes.layers,
                num_attention_heads=16,
                num_key_value_heads=8,
                head_dim=max(8, hidden // 8),
                max_position_embeddings=longest,
                initializer_range=0.1,
            )
            model = Transformer(config, vocabulary, generator, device=device)
        else:
            config = EncoderDecoderConfig(
                vocab_size=vocabulary.size,
                d_model=hidden,
                d_kv=max(8, hidden // 8),
                d_ff=3 * hidden,
                num_layers=sizes.layers,
                num_decoder_layers=sizes.layers,
                num_heads=8,
                max_position_embeddings=longest,
            )
            model = EncoderDecoder(config, vocabulary, generator, device=device)
        model, bindings = model.to(dtype).eval(), IndexBindings(version)
        return cls(device=device, model=model, version=version, bindings=bindings, sizes=sizes, scoring=scoring)

    def at(self, *, beams: int, tokens: int) -> Case:
        """Return the same model and index with other sizes of a search."""
        return replace(self, sizes=replace(self.sizes, beams=beams, tokens=tokens))

    def prompts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Prompts of different lengths, padded to T."""
        rng, sizes = np.random.default_rng(), self.sizes
        tokens_BT = rng.integers(3, self.model.vocabulary.size, (sizes.requests, sizes.tokens))
        return tokens_BT, rng.integers(1, sizes.tokens + 1, sizes.requests)

    def searched(self, tokens_BT: NDArray[np.int64], lengths_B: NDArray[np.int64]) -> SearchResult:
        """Without a graph."""
        session = self.model.start(*(torch.from_numpy(one).to(self.device) for one in (tokens_BT, lengths_B)))
        search = BeamSearch(self.bindings, num_beams=self.sizes.beams, scoring=self.scoring)
        return search.run(session.step_fn, batch_size=len(lengths_B))

    def captured(self) -> Callable[[NDArray[np.int64], NDArray[np.int64]], SearchResult]:
        """The same search as a graph."""
        sizes, on_gpu = self.sizes, self.device.type == "cuda"
        index: Any = (DeviceIndex if on_gpu else TorchIndex)(self.version, self.device)
        runner = StaticModel(self.model, triton.attention() if on_gpu else reference.attention())
        bucket = Bucket(batch=sizes.requests, length=sizes.tokens, num_beams=sizes.beams, scoring=self.scoring)
        decode = StaticDecode(runner, index, bucket)
        capturer = (CudaCapturer if on_gpu else RunAgain)(self.device)
        replay = capturer.capture(decode)
        requests = check_batch(self.version, sizes.requests, None, None)

        def run(tokens_BT: NDArray[np.int64], lengths_B: NDArray[np.int64]) -> SearchResult:
            batch = BatchInputs(version=self.version, tokens_BT=tokens_BT, lengths_B=lengths_B, requests=requests)
            assert decode.load(batch)
            replay()
            collect = partial(collect_items, self.version, requests)
            return result_of(decode.trace(len(requests), 1), collect, decode.config, sizes.beams)

        return run


def runs(device: torch.device, seconds: float, sizes: Sizes = REAL) -> Measured:
    """Rows of parity, then of times, then of workers."""
    until = time.monotonic() + seconds
    ways = [(kind, scoring) for kind in get_args(Kind) for scoring in get_args(Normalize)]  # those that graphs capture
    for kind, scoring in ways:
        yield attempt(
            {"what": "decode parity", "model": kind, "scoring": scoring}, partial(parity, device, kind, scoring, sizes)
        )
    for kind, scoring in ways:
        parameters = {"what": "decode", "model": kind, "scoring": scoring, **vars(sizes)}
        if time.monotonic() > until:
            yield parameters, {"left_out": f"after {seconds:.0f} s"}
            continue
        yield attempt(parameters, partial(measure, device, kind, scoring, sizes))
    yield attempt({"what": "two workers", **vars(sizes)}, partial(streams, device, sizes))


def parity(device: torch.device, kind: Kind, scoring: Scoring, sizes: Sizes) -> dict[str, Any]:
    """Two batches through one graph against searches without; raises where scores differ, or more than 1 % of the items."""
    case = Case.drawn(device, kind, scoring, sizes, torch.float32)
    captured, other = case.captured(), 0
    for _ in range(2):
        prompts = case.prompts()
        found, expected = captured(*prompts), case.searched(*prompts)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-3)
        other += sum(int((ours != wanted).sum()) for ours, wanted in zip(found.item_ids, expected.item_ids, strict=True))
    compared = 2 * sizes.requests * sizes.beams
    assert other <= 0.01 * compared, f"{other} of {compared} items differ"
    return {"parity": "ok", "equal_scores_ordered_otherwise": other}


def measure(device: torch.device, kind: Kind, scoring: Scoring, sizes: Sizes) -> dict[str, Any]:
    """Milliseconds of a batch, from prompts to items, as a graph and without."""
    case = Case.drawn(device, kind, scoring, sizes, _dtype(device))
    return measured_case(case, case.prompts())


def measured_case(case: Case, prompts: tuple[NDArray[np.int64], NDArray[np.int64]]) -> dict[str, Any]:
    """The same of a model, an index and prompts (`Case.prompts`); both ways find the same scores."""
    captured = case.captured()
    found, expected = captured(*prompts), case.searched(*prompts)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=2e-2, atol=2e-2 if case.device.type == "cuda" else 1e-3)
    ms = {
        "graph": milliseconds(partial(captured, *prompts)),
        "launches": milliseconds(partial(case.searched, *prompts)),
    }
    over = round(ms["launches"]["p50"] / ms["graph"]["p50"], 3)
    return {"ms": ms, "launches_over_graph": over}


def streams(device: torch.device, sizes: Sizes, batches: int = 8) -> dict[str, Any]:
    """Seconds in which two threads search without graphs: in the default stream, as workers do, and each in its own."""
    case = Case.drawn(device, "decoder", "full", sizes, _dtype(device))
    prompts = case.prompts()
    expected = case.searched(*prompts)
    seconds: dict[str, float] = {}
    ways: dict[str, list[Callable[[], AbstractContextManager[Any]]]] = {"default stream": [nullcontext] * 2}
    if device.type == "cuda":
        ways["own streams"] = [partial(torch.cuda.stream, torch.cuda.Stream(device)) for _ in range(2)]
        torch.cuda.synchronize(device)  # the weights were written in the default stream
    for name, opened in ways.items():
        found: list[SearchResult] = []

        def work(stream: Callable[[], AbstractContextManager[Any]], found: list[SearchResult] = found) -> None:
            for _ in range(batches):
                with stream():
                    found.append(case.searched(*prompts))

        threads = [threading.Thread(target=work, args=(stream,)) for stream in opened]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds[name] = round(time.perf_counter() - begin, 4)
        assert len(found) == 2 * batches, "a worker failed"
        for result in found:
            np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-2, atol=1e-2)
    return {"batches": 2 * batches, "seconds": seconds}


def _dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def milliseconds(run: Callable[[], object], samples: int = 9) -> dict[str, float]:
    """p20, p50 and p80 by the clock; each run ends with its result on the host."""
    run()
    taken = list(_taken(run, samples))
    return dict(zip(("p20", "p50", "p80"), np.percentile(taken, [20, 50, 80]).round(3).tolist(), strict=True))


def _taken(run: Callable[[], object], samples: int) -> Iterator[float]:
    for _ in range(samples):
        begin = time.perf_counter()
        run()
        yield 1e3 * (time.perf_counter() - begin)
