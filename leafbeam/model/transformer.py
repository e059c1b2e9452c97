"""The decoder-only model: Qwen3's layers and a head of which any level is a slice.

Shapes: B requests, T tokens of each, D hidden, V codes of a level.
"""

import torch
from torch import Tensor, nn

from leafbeam.errors import ArgumentError
from leafbeam.model.base import SidModel
from leafbeam.model.checks import check_prompts, checked_lengths
from leafbeam.model.config import ModelConfig
from leafbeam.model.cpu_runner import CpuRunner
from leafbeam.model.prompt_store import PromptStore
from leafbeam.model.qwen3 import Qwen3, causal, make_dropout
from leafbeam.model.runner import Runner, TorchRunner
from leafbeam.model.session import DecodeSession
from leafbeam.model.vocabulary import AnyVocabulary
from leafbeam.model.weights import TensorNames
from leafbeam.model.workspace import Workspace

__all__ = ["Transformer"]


class Transformer(SidModel[ModelConfig]):
    """A decoder-only transformer over Semantic IDs: Qwen3's architecture and parameter names, any size.

    Initial weights come from `generator` (None: one seeded with 0), never from torch's global state. vocab_size may exceed
    vocabulary.size (large models pad their embedding); a smaller one raises ArgumentError.

    >>> from leafbeam.model import Vocabulary
    >>> vocabulary = Vocabulary(codebook_sizes=(256, 256, 256, 8))
    >>> model = Transformer(ModelConfig(vocab_size=vocabulary.size), vocabulary)
    >>> tokens_BT, lengths_B = vocabulary.prompts([[[17, 4, 99, 0], [3, 250, 12, 1]]])
    >>> hidden_BTD = model(torch.from_numpy(tokens_BT))
    >>> model.head(hidden_BTD[:, -1], level=0).shape
    torch.Size([1, 256])
    """

    config_type = ModelConfig
    tensor_names = TensorNames(embedding="model.embed_tokens.weight")

    def __init__(
        self,
        config: ModelConfig,
        vocabulary: AnyVocabulary,
        generator: torch.Generator | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(config, vocabulary)
        self.model = Qwen3(config)
        self._finish(generator, device)

    @property
    def embedding(self) -> nn.Embedding:
        """The embedding of all tokens."""
        return self.model.embed_tokens

    def _initial_deviation(self, name: str) -> float:
        return self.config.initializer_range

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, dropout: torch.Generator | None = None) -> Tensor:
        """Hidden states (B, T, D) under causal attention, after the final norm.

        lengths_B: tokens of each row that count; the hidden states of the padding behind them are zeros. dropout: chooses what
        is dropped; a model in training mode with config.dropout > 0 needs it (ArgumentError).
        """
        check_prompts(tokens_BT, lengths_B, self.config)
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        drop = make_dropout(self.config.dropout if self.training else 0.0, dropout)
        hidden_BTD = self.model(tokens_BT, positions_T, causal, drop)
        if lengths_B is None:
            return hidden_BTD
        return hidden_BTD.masked_fill((positions_T >= lengths_B.to(tokens_BT.device)[:, None])[..., None], 0)

    @torch.inference_mode()
    def start(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor | None = None,
        *,
        workspace: Workspace | None = None,
        store: PromptStore | None = None,
        beams: int = 0,
    ) -> DecodeSession:
        """Prefill prompts (B, T) int64, padded on the right to lengths_B (at least 1 each), and open a decoding session.

        Cost: one pass over the tokens; the session holds the prompts' keys and values. No gradients. On a CPU in float32 it
        runs packed rows (`CpuRunner`), elsewhere the torch modules.

        workspace: buffers to reuse; a session and its logits are void once the workspace serves another. store: prefixes of
        prompts that it holds are not computed again. Both raise ArgumentError except on a CPU in float32. beams: the expected
        number of beams, to allocate memory for their codes once. Prompts that leave no positions for a whole SID raise
        ArgumentError.
        """
        check_prompts(tokens_BT, lengths_B, self.config, num_new_tokens=self.vocabulary.num_levels - 1)
        lengths_B = checked_lengths(tokens_BT, lengths_B)
        weight = self.head_weight
        if weight.device.type == "cpu" and weight.dtype == torch.float32:
            runner: Runner = CpuRunner(self.model, weight, self.vocabulary, tokens_BT, lengths_B, workspace, store, beams)
        elif workspace is not None or store is not None:
            raise ArgumentError(
                f"workspace and store need a model in float32 on a CPU; this model is {weight.dtype} on {weight.device}: "
                "leave them out"
            )
        else:
            runner = TorchRunner(self.model, self.head, tokens_BT, lengths_B)
        return DecodeSession(runner, self.vocabulary, lengths_B)
