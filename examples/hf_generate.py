"""`model.generate` of transformers writes Semantic IDs of your items alone. Needs leafbeam[torch] and transformers."""

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from leafbeam import Trie
from leafbeam.integrations.transformers import TrieLogitsProcessor

torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=256,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=16,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
model = Qwen3ForCausalLM(config).eval()  # yours: with a token for each code of each level

rng = np.random.default_rng(0)
names = [f"item-{row}" for row in range(2_000)]
index = Trie.build(rng.integers(0, 32, (2_000, 3)), codebook_sizes=[32] * 3, item_ids=names)
tokens = [range(100, 132), range(132, 164), range(164, 196)]  # of code 0, 1, ... of each level
fresh = index.filter(rng.random(2_000) < 0.1)

prompts = torch.tensor([[105, 140, 170], [110, 150, 190]])
legal = TrieLogitsProcessor(index, code_tokens=tokens, eos_token_id=2, prompt_length=3, filters=[fresh, None])
output = model.generate(
    prompts,
    attention_mask=torch.ones_like(prompts),
    logits_processor=[legal],
    num_beams=8,
    num_return_sequences=8,
    max_new_tokens=legal.num_tokens,
    length_penalty=0.0,
    do_sample=False,
    return_dict_in_generate=True,
    output_scores=True,
)
result = legal.results(output.sequences, output.sequences_scores, num_return_sequences=8)
print(result.num_valid.tolist(), result.item_ids[0][:3].tolist())
assert all(item in fresh for item in result.item_ids[0])
