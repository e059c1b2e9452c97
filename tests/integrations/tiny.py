"""A tiny Qwen3 of transformers' own, its Semantic ID tokens scattered over a larger vocabulary, and pleach's search on it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Qwen3Config, Qwen3ForCausalLM

from pleach.decode import StepFn

PAD, EOS, WORDS = 0, 2, 160
Model = Any


def tiny_qwen3(vocabulary: int = WORDS, hidden: int = 32, layers: int = 2, seed: int = 7) -> Model:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=hidden // 2,
        max_position_embeddings=128,
        initializer_range=0.3,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=EOS,
        use_cache=True,
    )
    return Qwen3ForCausalLM(config).eval()


def prompts(lengths: Sequence[int], words: int = WORDS, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random prompts of these lengths, padded on the left."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    input_ids = torch.randint(3, words, (len(lengths), width), generator=generator)
    mask = torch.arange(width) >= width - torch.tensor(lengths)[:, None]
    return {"input_ids": input_ids.where(mask, PAD), "attention_mask": mask.long()}


def step_fn_of(model: Model, inputs: dict[str, torch.Tensor], tokens: Sequence[NDArray[np.int64]]) -> StepFn:
    """The model's scores of each level's tokens, every sequence read whole: log-softmax over all the model's tokens, as beam
    search in `generate` has it."""
    state: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def step(codes: Any, parents: Any) -> torch.Tensor:
        batch = len(inputs["input_ids"])
        if codes is None:
            state["suffix"] = torch.empty(batch, 1, 0, dtype=torch.int64)
        else:
            level = state["suffix"].shape[2]
            taken = torch.from_numpy(tokens[level])[codes][:, :, None]
            kept = state["suffix"].gather(1, parents[:, :, None].expand(-1, -1, level))
            state["suffix"] = torch.cat([kept, taken], 2)
        suffix = state["suffix"]
        width = suffix.shape[1]
        rows = {name: value.repeat_interleave(width, 0) for name, value in inputs.items()}
        sequences = torch.cat([rows["input_ids"], suffix.flatten(0, 1)], 1)
        mask = torch.cat([rows["attention_mask"], torch.ones(suffix.flatten(0, 1).shape, dtype=torch.int64)], 1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = model(input_ids=sequences, attention_mask=mask, position_ids=positions).logits[:, -1].float()
        scores = logits.log_softmax(-1)[:, torch.from_numpy(tokens[suffix.shape[2]])]
        return scores.view(batch, width, -1)

    return step
