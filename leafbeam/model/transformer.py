"""The model: Qwen3's body, a head of which any level is a slice, and the ways in and out of it.

Shapes: B requests, T tokens of each, D hidden, V codes of a level.
"""

from os import PathLike
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leafbeam.errors import ArgumentError
from leafbeam.model.checks import check_dtype, check_prompts, check_vocabulary, checked_lengths, dropping
from leafbeam.model.config import ModelConfig
from leafbeam.model.cpu_runner import CpuRunner
from leafbeam.model.prompt_store import PromptStore
from leafbeam.model.qwen3 import Qwen3, RMSNorm, causal
from leafbeam.model.runner import Runner, TorchRunner
from leafbeam.model.session import DecodeSession
from leafbeam.model.vocabulary import AnyVocabulary
from leafbeam.model.weights import read_config, read_tensors, write_checkpoint
from leafbeam.model.workspace import Workspace


class Transformer(nn.Module):
    """A decoder-only transformer over Semantic IDs: Qwen3's architecture and parameter names, any size.

    Think of it as a language model whose words are the codes of a SID; `head` reads one level's codes only. Weights are
    drawn from `generator` (one seeded with 0 where none is given), never from torch's global state.

    vocab_size may exceed vocabulary.size (large models pad their embedding); it must not be smaller (ArgumentError).

    >>> from leafbeam.model import Vocabulary
    >>> vocabulary = Vocabulary(codebook_sizes=(256, 256, 256, 8))
    >>> model = Transformer(ModelConfig(vocab_size=vocabulary.size), vocabulary)
    >>> tokens_BT, lengths_B = vocabulary.prompts([[[17, 4, 99, 0], [3, 250, 12, 1]]])
    >>> hidden_BTD = model(torch.from_numpy(tokens_BT))
    >>> model.head(hidden_BTD[:, -1], level=0).shape
    torch.Size([1, 256])
    """

    lm_head: nn.Linear | None

    def __init__(
        self,
        config: ModelConfig,
        vocabulary: AnyVocabulary,
        generator: torch.Generator | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        check_vocabulary(vocabulary, config)
        self.config = config
        self.vocabulary = vocabulary
        self.model = Qwen3(config)
        untied = not config.tie_word_embeddings
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, device="meta") if untied else None
        if torch.device(device).type != "meta":  # there the caller fills the weights
            self._draw(generator or torch.Generator().manual_seed(0), torch.device(device))

    def _draw(self, generator: torch.Generator, device: torch.device) -> None:
        """Norms at 1, everything else normal with the config's initializer_range, in the order of the parameters."""
        self.to_empty(device=device)
        for module in self.modules():
            if isinstance(module, RMSNorm):
                nn.init.ones_(module.weight)
            elif isinstance(module, nn.Linear | nn.Embedding):
                drawn = torch.empty(module.weight.shape, device=generator.device)
                drawn.normal_(std=self.config.initializer_range, generator=generator)
                with torch.no_grad():
                    module.weight.copy_(drawn)

    @property
    def head_weight(self) -> Tensor:
        """The matrix (vocab_size, D) from hidden states to logits; the embedding itself where the two are tied."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.embed_tokens.weight.device

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, dropout: torch.Generator | None = None) -> Tensor:
        """Hidden states (B, T, D), each after seeing its token and those before it, final norm applied.

        lengths_B: tokens of each row that count; behind them is padding, whose hidden states come back as zeros.
        dropout: the generator that chooses what is dropped. A model in training mode with config.dropout > 0 needs it
        (ArgumentError); in evaluation mode nothing is dropped.
        """
        check_prompts(tokens_BT, lengths_B, self.config)
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        hidden_BTD = self.model(
            tokens_BT, positions_T, causal, dropping(self.config.dropout if self.training else 0.0, dropout)
        )
        if lengths_B is None:
            return hidden_BTD
        return hidden_BTD.masked_fill((positions_T >= lengths_B.to(tokens_BT.device)[:, None])[..., None], 0)

    def head(self, hidden: Tensor, level: int) -> Tensor:
        """Logits (..., V) of one level's codes from hidden states (..., D); only that level's rows are multiplied."""
        return F.linear(hidden, self.vocabulary.level_rows(self.head_weight, level))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., vocab_size) of every token from hidden states (..., D)."""
        return F.linear(hidden, self.head_weight)

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
        """Run prompts (B, T) int64, padded on the right to lengths_B (at least 1 each), and open the rounds of a search.

        Costs one pass over the tokens; the keys and values of the prompts live as long as the answer. No gradients.
        On a CPU, in float32, it runs as packed rows (`CpuRunner`), else by the model's own modules.

        workspace: memory to be written over, so that one search after the other allocates nothing; rounds that were started in
        it before, and the logits that they answered, are void from then on. store: prompts that were read before are not read
        again as far as they are known. Both are refused elsewhere than on a CPU in float32. beams: how many there will be, if
        it is known: room for their codes is then made once, and not again where the second round is wider than the first.
        Prompts that leave no room for a whole SID in the model's positions raise ArgumentError.
        """
        check_prompts(tokens_BT, lengths_B, self.config, further=self.vocabulary.num_levels - 1)
        lengths_B = checked_lengths(tokens_BT, lengths_B)
        weight = self.head_weight
        if weight.device.type == "cpu" and weight.dtype == torch.float32:
            runner: Runner = CpuRunner(self.model, weight, self.vocabulary, tokens_BT, lengths_B, workspace, store, beams)
        elif workspace is not None or store is not None:
            raise ArgumentError(
                f"a workspace and a store of prompts are for float32 on a CPU; this model is {weight.dtype} on {weight.device}"
            )
        else:
            runner = TorchRunner(self.model, self.head, tokens_BT, lengths_B)
        return DecodeSession(runner, self.vocabulary, lengths_B)

    @classmethod
    def from_pretrained(
        cls,
        directory: str | PathLike[str],
        *,
        vocabulary: AnyVocabulary | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> "Transformer":
        """Read a model that leafbeam or transformers saved, in evaluation mode.

        vocabulary: needed for a checkpoint that leafbeam did not write (it has no leafbeam.json).
        dtype: cast to it; None keeps the file's. Raises CheckpointError for files that are missing, cut short, of
        another architecture, or that do not fit together.
        """
        check_dtype(dtype)
        config, vocabulary = read_config(Path(directory), vocabulary, ModelConfig)
        model = cls(config, vocabulary, device="meta")
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        tensors = read_tensors(
            Path(directory), shapes, tied=config.tie_word_embeddings, dtype=dtype, device=torch.device(device)
        )
        model.load_state_dict(tensors, assign=True)
        return model.eval()

    def save_pretrained(self, directory: str | PathLike[str]) -> None:
        """Write config.json and model.safetensors, as transformers' Qwen3ForCausalLM reads them, and leafbeam.json."""
        write_checkpoint(Path(directory), self.config, self.vocabulary, dict(self.named_parameters()))
