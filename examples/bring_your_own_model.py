"""Any model that gives logits of the next code can be searched; here a GRU in torch. Needs leafbeam[torch]."""

import numpy as np
import torch

from leafbeam import BeamSearch, Trie

CODES, LEVELS, HIDDEN = 32, 3, 48
rng = np.random.default_rng(0)
item_codes = rng.integers(0, CODES, (1_000, LEVELS))  # your own Semantic IDs
names = [f"item-{row}" for row in range(1_000)]
index = Trie.build(item_codes, codebook_sizes=[CODES] * LEVELS, item_ids=names)


class NextItem(torch.nn.Module):
    """Reads the codes of a history one by one, and gives logits of the next code."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(LEVELS * CODES, HIDDEN)
        self.cell = torch.nn.GRUCell(HIDDEN, HIDDEN)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(HIDDEN, CODES) for _ in range(LEVELS))

    def read(self, codes, level, state):
        return self.cell(self.embed(level * CODES + codes), state)


class Decoding:
    """One batch: what the search calls, with a state for each beam."""

    def __init__(self, model, histories):  # histories: item rows (requests, items)
        self.model, self.level = model, 0
        self.state = torch.zeros(len(histories), HIDDEN)
        for codes in torch.as_tensor(item_codes[histories]).reshape(len(histories), -1).T:
            self.state = model.read(codes, self.level % LEVELS, self.state)
            self.level += 1
        self.level = 0

    def step(self, codes_BK, parents_BK):
        """codes: the code that each beam took; parents: the beam that it extends. None in the first round."""
        if codes_BK is None:
            return self.model.heads[0](self.state)
        if self.level == 0:
            self.state = self.state[:, None]  # one state a request, which every first beam extends (parent 0)
        requests = torch.arange(len(codes_BK))[:, None]
        state = self.state[requests, parents_BK]
        flat = self.model.read(codes_BK.reshape(-1), self.level, state.reshape(-1, HIDDEN))
        self.level, self.state = self.level + 1, flat.reshape(*codes_BK.shape, HIDDEN)
        return self.model.heads[self.level](self.state)


torch.manual_seed(0)
histories = rng.integers(0, 1_000, (2, 5))
allowed = index.filter(rng.random(1_000) < 0.2)
with torch.inference_mode():
    decoding = Decoding(NextItem(), histories)
    result = BeamSearch(index, num_beams=10).run(decoding.step, batch_size=2, filters=[allowed, None])
print(result.num_valid.tolist(), result.item_ids[0][:3].tolist())
assert all(item in allowed for item in result.item_ids[0])
