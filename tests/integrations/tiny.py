"""A tiny Qwen3 of transformers' own, its Semantic ID tokens scattered over a larger vocabulary, and leafbeam's search on it."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LogitsProcessorList, Qwen3Config, Qwen3ForCausalLM

from leafbeam import Trie
from leafbeam.decode import StepFn
from leafbeam.index import Filter, Segment, Version
from leafbeam.integrations.transformers import TrieLogitsProcessor

PAD, EOS, WORDS = 0, 2, 160
SIZES = (12, 9, 14)
Kind = Literal["trie", "version"]
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


def step_fn_of(
    model: Model, inputs: dict[str, torch.Tensor], tokens: Sequence[NDArray[np.int64]], scoring: str = "full"
) -> StepFn:
    """The model's scores of each level's tokens, every sequence read whole: log-softmax over all the model's tokens, as beam
    search in `generate` has it. With scoring "vocabulary" the last one is that of any other token."""
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
        log_p, of_level = logits.log_softmax(-1), torch.from_numpy(tokens[suffix.shape[2]])
        scores = log_p[:, of_level]
        if scoring == "vocabulary":
            scores = torch.cat([scores, log_p.index_fill(1, of_level, -torch.inf).logsumexp(1, keepdim=True)], 1)
        return scores.view(batch, width, -1)

    return step


class Shop:
    """300 items, their tokens scattered over the vocabulary, as one trie or as a base and a delta with deleted items."""

    def __init__(self, kind: Kind = "trie", seed: int = 0, items: int = 300) -> None:
        rng = np.random.default_rng(seed)
        words = rng.permutation(np.arange(3, WORDS))
        self.tokens = np.split(words[: sum(SIZES)], np.cumsum(SIZES)[:-1])
        codes = rng.integers(0, SIZES, (items, len(SIZES)))
        self.index: Trie | Version = Trie.build(codes, SIZES)
        if kind == "version":
            base, delta = Trie.build(codes[:250], SIZES), Trie.build(codes[200:], SIZES, item_ids=np.arange(200, items))
            live = base.filter(np.arange(250) < 200) - base.filter(item_ids=[3, 4, 5])
            self.index = Version(segments=(Segment(trie=base, live=live), Segment(trie=delta)), number=1)
        self.rng = rng

    def filter(self, share: float) -> Filter:
        alive = np.arange(self.index.num_items) if isinstance(self.index, Trie) else self.index.all_items.item_ids()
        return self.index.filter(item_ids=alive[self.rng.random(len(alive)) < share])

    def processor(self, inputs: dict[str, torch.Tensor], **options: Any) -> TrieLogitsProcessor:
        width = inputs["input_ids"].shape[1]
        return TrieLogitsProcessor(self.index, code_tokens=self.tokens, eos_token_id=EOS, prompt_length=width, **options)


def beams(model: Model, inputs: dict[str, torch.Tensor], processor: Any, width: int, steps: int = 3, **options: Any) -> Any:
    return model.generate(
        **inputs,
        logits_processor=LogitsProcessorList([processor]),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=steps,
        length_penalty=0.0,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
