"""A decoding step of Qwen3, to say which share of it a constraint takes: random weights, float32, one core.

    python -m benchmarks.static.inference POINT

The paper's model has 3 x 10^9 parameters on a TPU. These are the shapes of Qwen3's two smallest over Semantic IDs of 8 levels
of 2,048 codes, run by leafbeam: all beams of two requests, and the logits of the next level.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.peers.failure import PeerFailure, ended, failure_of
from benchmarks.rows import spread
from benchmarks.static import trials
from benchmarks.static.methods import gib
from leafbeam.model import ModelConfig, Transformer, Vocabulary, Workspace

__all__ = ["MODELS", "Inference", "decode_steps", "shares_of_inference"]

_QWEN3 = {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": {"hidden_size": 1024, "intermediate_size": 3072} | _QWEN3,
    "Qwen3-1.7B": {"hidden_size": 2048, "intermediate_size": 6144} | _QWEN3,
}
_QUICK = {"tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}}
_LIMIT_S = 1200.0


@dataclass(frozen=True, kw_only=True)
class Inference:
    """One model and the search that it runs. sizes: fields of `ModelConfig`."""

    sizes: dict[str, Any]
    num_codes: int
    num_levels: int
    batch_size: int
    num_beams: int
    prompt_tokens: int = 512
    searches: int = 2

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        vocabulary = self.vocabulary
        return ModelConfig(vocab_size=vocabulary.size, tie_word_embeddings=True, max_position_embeddings=1024, **self.sizes)

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(codebook_sizes=(self.num_codes,) * self.num_levels)

    @property
    def needs(self) -> int:
        """Bytes of the weights, and half of that again for what is held while they are drawn."""
        config = self.config
        heads = config.num_attention_heads + config.num_key_value_heads
        layer = config.hidden_size * (2 * heads * config.head_dim + 3 * config.intermediate_size)
        return 6 * (config.num_hidden_layers * layer + config.vocab_size * config.hidden_size)


def shares_of_inference(measured: dict[str, Any], parameters: dict[str, Any], *, quick: bool, memory: int) -> dict[str, Any]:
    """For each model: milliseconds of a decoding step, and each method's step as a percentage of it; or why there are none."""
    found: dict[str, Any] = {}
    for name, sizes in (_QUICK if quick else MODELS).items():
        point = Inference(
            sizes=sizes,
            num_codes=parameters["V"],
            num_levels=parameters["L"],
            batch_size=parameters["B"],
            num_beams=parameters["K"],
            prompt_tokens=32 if quick else 512,
        )
        try:
            if point.needs > memory:
                raise PeerFailure("left out", f"does not fit: needs {gib(point.needs)} of {gib(memory)}")
            one = decode_steps(point) if quick else _in_a_process(point)
        except Exception as error:
            found[name] = failure_of(error).row
            continue
        middle = 1e3 * one["step_ms"]["p50"]
        shares = {method: round(100 * step["p50"] / middle, 3) for method, step in measured["step_us"].items()}
        found[name] = one | {"share_percent": shares}
    return found


def decode_steps(point: Inference) -> dict[str, Any]:
    """Milliseconds of a step after the first code: p20, p50, p80 over the levels of a few searches."""
    rng = np.random.default_rng(0)
    vocabulary = point.vocabulary
    model = Transformer(point.config, vocabulary, torch.Generator().manual_seed(0)).eval()
    shape, seconds = (point.batch_size, point.num_beams), []
    with trials.one_core():
        prompts_BT = torch.from_numpy(rng.integers(0, vocabulary.size, (point.batch_size, point.prompt_tokens)))
        lengths_B = torch.full((point.batch_size,), point.prompt_tokens)
        session = model.start(prompts_BT, lengths_B, workspace=Workspace(), beams=point.num_beams)
        for search in range(-1, point.searches):  # the first one warms up
            session.step_fn(None, None)
            for level in range(point.num_levels - 1):
                codes_BK = rng.integers(0, point.num_codes, shape)
                parents_BK = rng.integers(0, point.num_beams if level else 1, shape)
                begin = time.perf_counter()
                session.step_fn(codes_BK, parents_BK)
                if search >= 0:
                    seconds.append(time.perf_counter() - begin)
    count = sum(weight.numel() for weight in model.parameters())
    return {"step_ms": spread(seconds, 1e-3), "steps": len(seconds), "parameters": count, "prompt_tokens": point.prompt_tokens}


def _in_a_process(point: Inference) -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks.static.inference", json.dumps(asdict(point))]
    pipe = subprocess.PIPE
    try:
        done = subprocess.run(
            words, stdout=pipe, stderr=pipe, text=True, timeout=_LIMIT_S, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
    except subprocess.TimeoutExpired:
        raise PeerFailure("timed out", f"no answer within {_LIMIT_S:g} s") from None
    if done.returncode:
        raise ended(done.returncode, (done.stderr.strip().splitlines() or ["it printed nothing"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(decode_steps(Inference(**json.loads(sys.argv[1])))))
