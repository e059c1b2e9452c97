"""Tiny checkpoints of every decoder that leafbeam reads, made by transformers, and scores of both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from leafbeam.model import Transformer, Vocabulary
from leafbeam.model.session import DecodeSession
from leafbeam.model.torch_runner import RunnerOptions
from leafbeam.ops.attention import reference

VOCABULARY = Vocabulary(codebook_sizes=(5, 4, 6, 3))
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY.size + 3,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
# Fields of a small config.json of each architecture.
BASES: dict[str, dict[str, Any]] = {
    "qwen2": _SIZES | {"head_dim": 4},
    "qwen3": _SIZES,
    "qwen3_moe": _SIZES | _EXPERTS,
    "llama": _SIZES,
    "mistral": _SIZES | {"sliding_window": 7},
    "gemma": _SIZES,
    "gemma2": _SIZES
    | {"sliding_window": 7, "query_pre_attn_scalar": 9, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": _SIZES
    | {
        "sliding_window": 7,
        "query_pre_attn_scalar": 9,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
    },
    "phi3": _SIZES | {"head_dim": 8, "pad_token_id": 0, "partial_rotary_factor": 0.5},
    "olmo2": _SIZES | {"head_dim": 4},
    "gpt2": {"vocab_size": VOCABULARY.size + 3, "n_embd": 16, "n_inner": 20, "n_layer": 3, "n_head": 4, "n_positions": 64},
}


def make(directory: Path, model_type: str, change: dict[str, Any] | None = None, *, seed: int = 0, **save: Any) -> Any:
    """Save a small model of random weights, norms and biases included, as transformers does; return it."""
    fields = BASES[model_type] | (change or {})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields), attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(0, 0.3, generator=generator)
            if "norm" in name or "ln_" in name:
                weight.add_(1)
    model.save_pretrained(directory, **save)
    return model


def truth(model: Any, prompts: Sequence[Sequence[int]], codes_BKL: Tensor) -> Tensor:
    """Log-probabilities among a level's codes of all codes after each prompt (B, K, L), teacher-forced, in transformers."""
    scores: list[Tensor] = []
    for prompt, codes_KL in zip(prompts, codes_BKL, strict=True):
        tokens = torch.stack([VOCABULARY.tokens_at(codes_KL[:, level], level) for level in range(codes_KL.shape[1])], 1)
        rows = torch.cat((torch.tensor(prompt).expand(len(codes_KL), -1), tokens), 1)
        with torch.no_grad():
            logits = model(rows).logits[:, len(prompt) - 1 : -1].float()
        scores.append(_of_levels([logits[:, level] for level in range(codes_KL.shape[1])], codes_KL))
    return torch.stack(scores)


def _of_levels(logits: Sequence[Tensor], codes_KL: Tensor) -> Tensor:
    parts = [
        torch.from_numpy(VOCABULARY.level_tokens(level)) if values.shape[-1] > VOCABULARY.codebook_sizes[level] else None
        for level, values in enumerate(logits)
    ]
    chosen = [values if part is None else values[..., part] for values, part in zip(logits, parts, strict=True)]
    return torch.stack(
        [values.log_softmax(-1).gather(-1, codes_KL[..., level, None])[..., 0] for level, values in enumerate(chosen)], -1
    )


def padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Prompts padded on the right, and their lengths."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    return torch.tensor([[*prompt, *[0] * (int(lengths.max()) - len(prompt))] for prompt in prompts]), lengths


def decoded(session: DecodeSession, codes_BKL: Tensor, *, by_suffix: bool = False) -> Tensor:
    """Return what `truth` returns, from the steps of a decoding session; by_suffix: the codes after the first in one pass."""
    first_BV = session.step_fn(None, None)
    logits = [first_BV[:, None].expand(-1, codes_BKL.shape[1], -1).clone()]
    parents = torch.zeros_like(codes_BKL[..., 0])
    own = torch.arange(codes_BKL.shape[1]).expand_as(parents)
    if by_suffix:
        logits.append(session.step_fn(codes_BKL[..., 0], parents).clone())
        logits += [values.clone() for values in session.suffix_fn(codes_BKL[..., 1:-1], own)]
    else:
        for level in range(codes_BKL.shape[2] - 1):
            logits.append(session.step_fn(codes_BKL[..., level], own if level else parents).clone())
    return _of_levels(logits, codes_BKL)


def by_modules(model: Transformer, prompts: Sequence[Sequence[int]], codes_BKL: Tensor, *, by_suffix: bool = False) -> Tensor:
    """Return what `truth` returns, from the torch modules, as a captured decode runs them."""
    tokens_BT, lengths_B = padded(prompts)
    options = RunnerOptions(head=model.head, attention=reference.attention(), num_levels=VOCABULARY.num_levels)
    with torch.inference_mode():
        runner = model.run_prompts(tokens_BT, lengths_B, options)
    return decoded(DecodeSession(runner, VOCABULARY, lengths_B), codes_BKL, by_suffix=by_suffix)
