"""Training settings: budget, recipe, learning-rate schedule, and presets of three sizes."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import cos, pi
from typing import Any, Literal

from leafbeam.errors import ArgumentError, CheckpointError, check_choice, check_number, check_whole
from leafbeam.model import AnyConfig, EncoderDecoderConfig, ModelConfig, Vocabulary

Architecture = Literal["decoder-only", "encoder-decoder", "item-history"]
Precision = Literal["auto", "fp32", "bf16"]
PresetName = Literal["tiny", "small", "base"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The end of training: a number of updates, of passes over the log, or of minutes. Exactly one of them is set.

    Steps and epochs give the same weights on every run with one seed; minutes follow
    the clock, and those before a run was resumed count too.

    Args:
        steps: The number of updates.
        epochs: The number of passes over the log.
        minutes: The minutes that the whole command may take.

    Examples:
        >>> Budget(minutes=10).share(steps=0, epochs=0.0, seconds=300)
        0.5
    """

    steps: int | None = None
    epochs: float | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if len(self._limits) != 1:
            raise ArgumentError(
                f"a budget needs exactly one of steps, epochs and minutes, but has {self._limits or 'none of them'}"
            )
        check_number(exclusive=True, **self._limits)

    @property
    def _limits(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def share(self, *, steps: int, epochs: float, seconds: float) -> float:
        """Return the used share of the budget, from 0 to 1."""
        used = {"steps": steps, "epochs": epochs, "minutes": seconds / 60}
        return min(1.0, *(used[name] / limit for name, limit in self._limits.items()))

    def less(self, seconds: float) -> "Budget":
        """Return the budget without the seconds of other work, but with at least half of its minutes. Steps and epochs stay."""
        if self.minutes is None:
            return self
        return replace(self, minutes=max(self.minutes / 2, self.minutes - seconds / 60))

    def __str__(self) -> str:
        return ", ".join(f"{value:,g} {name}" for name, value in self._limits.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything that determines training, apart from the data.

    A checkpoint resumes under the recipe that it was saved with; only budget and validations may differ. The defaults
    are those that did best on Amazon Beauty in ten minutes of two CPU cores.

    Args:
        budget: When training ends.
        seed: The seed of the initial weights, the order of the data and dropout.
        architecture: The architecture of the model: decoder-only is Qwen3's; encoder-decoder is T5's, with as many encoder
            layers as decoder layers (num_key_value_heads does not apply to it); item-history has the layers of
            decoder-only, and reads one vector an item of the history: the sum of its codes' embeddings.
        hidden_size: The width of the model.
        intermediate_size: The width inside the feed-forward layers.
        num_hidden_layers: The number of layers; an encoder-decoder has this many in each half.
        num_attention_heads: The number of query heads.
        num_key_value_heads: The number of key and value heads; num_attention_heads must be a multiple of it.
        head_dim: The width of an attention head.
        tie_word_embeddings: If true, the output layer uses the weights of the embeddings.
        num_experts: The number of experts in each decoder layer of an encoder-decoder; 0 gives dense layers.
        num_experts_per_tok: The number of experts that process each token.
        dropout: The share of values that dropout sets to 0 in training.
        max_items: The longest history of a training example, in items; longer histories are cut into windows.
        batch_tokens: The approximate number of tokens in a batch.
        learning_rate: The highest learning rate. A run that is resumed with a larger budget continues at the learning rate
            that belongs to the used share of the new budget.
        warmup: The share of the budget over which the learning rate rises; after that it falls along a cosine to 0.
        weight_decay: The weight decay of matrices and embeddings; norms have none.
        betas: AdamW's two betas.
        clip_norm: The largest norm of the whole gradient; larger gradients are scaled down to it.
        label_smoothing: The share of the target's probability that is spread over the other codes of its level.
        teacher_weight: The share of the loss whose target is not the next item alone but the items that the item memory
            recommends (`MemoryTeacher`); 0 does not use the memory.
        teacher_items: The number of items that the memory recommends for each position.
        teacher_texts: Whether the memory also teaches which texts are similar. A model that is served alone is better with it,
            with teacher_weight 0.85 and dropout 0.1; a list that adds the memory's own scores is worse, because both parts of
            it then know the same.
        sampled_codes: If the last level has more codes than this, its loss is computed over this many randomly drawn codes,
            and the codes under the item's prefix.
        precision: The number format of training: fp32, bf16, or auto, which uses bf16 where the hardware multiplies it faster
            (a GPU, or a CPU with AMX or AVX-512 BF16).
        threads: The number of CPU threads of training. More than one is worth it only for wide models on idle cores.
        validations: The number of times that validation recall is measured, evenly spread over the budget. The best weights
            are kept, or the last ones if their recall is less than a standard error below the best, because the learning
            rate has fallen to 0 by then. A validation is skipped within 100 steps of another one, and, with a budget in
            minutes, if it would take more than 5 % of the time; the last one is never skipped. With 0 nothing is measured,
            and the last weights are kept.
        validation_users: The number of users in the sample of each validation.
        num_users: The number of tokens that user ids are hashed to; the token comes before the history (TIGER uses 2,000).
            With 0 the model reads no user.
        user_dropout: The share of training examples whose user token is replaced by the token for no user.
    """

    budget: Budget = field(default_factory=lambda: Budget(minutes=10))
    seed: int = 0
    architecture: Architecture = "decoder-only"
    hidden_size: int = 128
    intermediate_size: int = 384
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    head_dim: int = 32
    tie_word_embeddings: bool = True
    num_experts: int = 0
    num_experts_per_tok: int = 2
    dropout: float = 0.3
    max_items: int = 20
    batch_tokens: int = 1024
    learning_rate: float = 3e-3
    warmup: float = 0.03
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    clip_norm: float = 1.0
    label_smoothing: float = 0.05
    teacher_weight: float = 0.6
    teacher_items: int = 60
    teacher_texts: bool = False
    sampled_codes: int = 512
    precision: Precision = "auto"
    threads: int = 1
    validations: int = 12
    validation_users: int = 2000
    num_users: int = 0
    user_dropout: float = 0.1

    def __post_init__(self) -> None:
        above_0 = ("max_items", "batch_tokens", "threads", "validation_users", "teacher_items", "sampled_codes")
        check_whole(**{name: getattr(self, name) for name in above_0})
        check_whole(0, seed=self.seed, validations=self.validations, num_users=self.num_users)
        if self.seed >= 1 << 63:
            raise ArgumentError(f"seed must be below 2**63, not {self.seed}")
        check_number(exclusive=True, learning_rate=self.learning_rate, clip_norm=self.clip_norm)
        check_number(weight_decay=self.weight_decay)
        shares = ("warmup", "label_smoothing", "dropout", "user_dropout", "teacher_weight")
        check_number(below=1, **{name: getattr(self, name) for name in shares})
        object.__setattr__(self, "betas", tuple(self.betas))
        if len(self.betas) != 2:
            raise ArgumentError(f"betas must be two numbers, not {self.betas}")
        for beta in self.betas:
            check_number(below=1, betas=beta)
        check_choice("precision", self.precision, Precision)
        check_choice("architecture", self.architecture, Architecture)
        if self.num_experts and self.architecture != "encoder-decoder":
            raise ArgumentError(f"num_experts={self.num_experts}: only the architecture 'encoder-decoder' has experts")
        self.model_config(Vocabulary(codebook_sizes=(1,)))  # checks the sizes of the model

    def vocabulary(self, codebook_sizes: Sequence[int]) -> Vocabulary:
        """Return the tokens of a model of this recipe: those of the SIDs and of the users."""
        return Vocabulary(codebook_sizes=tuple(codebook_sizes), num_users=self.num_users)

    def model_config(self, vocabulary: Vocabulary) -> AnyConfig:
        """Return the configuration of the model, with positions for `max_items` items and one SID."""
        positions = (self.max_items + 1) * vocabulary.num_levels + 1
        if self.architecture == "encoder-decoder":
            return EncoderDecoderConfig(
                vocab_size=vocabulary.size,
                d_model=self.hidden_size,
                d_kv=self.head_dim,
                d_ff=self.intermediate_size,
                num_layers=self.num_hidden_layers,
                num_decoder_layers=self.num_hidden_layers,
                num_heads=self.num_attention_heads,
                tie_word_embeddings=self.tie_word_embeddings,
                scale_decoder_outputs=self.tie_word_embeddings,
                decoder_start_token_id=vocabulary.pad,
                dropout=self.dropout,
                max_position_embeddings=positions,
                num_experts=self.num_experts,
                num_experts_per_tok=self.num_experts_per_tok,
            )
        shared = {field.name: getattr(self, field.name) for field in fields(ModelConfig) if hasattr(self, field.name)}
        shared["item_history"] = self.architecture == "item-history"
        return ModelConfig(vocab_size=vocabulary.size, max_position_embeddings=positions, **shared)

    def learning_rate_at(self, share: float) -> float:
        """Return the learning rate at a share of the budget: linear warm-up, then half a cosine down to 0."""
        if share < self.warmup:
            return self.learning_rate * max(share, 1e-3 * self.warmup) / self.warmup
        return self.learning_rate * 0.5 * (1 + cos(pi * (share - self.warmup) / (1 - self.warmup)))

    def to_json(self) -> str:
        """Return the recipe as one line of JSON, which `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        """Return the recipe that `to_json` wrote.

        Raises:
            CheckpointError: If `to_json` did not write the text.
        """
        try:
            settings: dict[str, Any] = json.loads(text)
            settings["budget"] = Budget(**settings["budget"])
            old = {"teacher_weight": 0.0, "sampled_codes": 2**62}  # recipes from before these settings existed
            settings = old | settings
            settings.pop("patience", None)  # training stopped early once
            return cls(**settings)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CheckpointError(f"the recipe of the checkpoint cannot be read ({error}): train again") from error

    def differences(self, other: "Recipe") -> list[str]:
        """Return the settings in which two recipes differ, apart from those of the end of training, as "name: this, other"."""
        stops = {"budget", "validations", "validation_users"}
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self) if f.name not in stops)
        return [f"{name}: {value}, {other_value}" for name, value, other_value in pairs if value != other_value]


def preset(
    name: PresetName, *, budget: Budget | None = None, seed: int = 0, architecture: Architecture = "decoder-only"
) -> Recipe:
    """Return a named recipe; change other settings with `dataclasses.replace`.

    Args:
        name: "tiny" has one layer of width 64 and takes one minute, to try things out. "small" has two layers of width 128 and
            takes ten minutes on a CPU core (`Recipe()`). "base" has four layers of width 256 and 40 epochs with early stopping,
            for a GPU.
        budget: Another budget.
        seed: Another seed.
        architecture: Another architecture.

    Raises:
        ArgumentError: If there is no such recipe.
    """
    check_choice("the preset", name, PresetName)
    recipe = Recipe(seed=seed, architecture=architecture)
    if name == "tiny":
        recipe = replace(
            recipe,
            budget=Budget(minutes=1),
            hidden_size=64,
            num_hidden_layers=1,
            intermediate_size=192,
            num_attention_heads=2,
            num_key_value_heads=2,
            dropout=0.1,
            learning_rate=4e-3,
        )
    elif name == "base":
        recipe = replace(
            recipe,
            budget=Budget(epochs=40),
            hidden_size=256,
            intermediate_size=768,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=8,
            dropout=0.2,
            batch_tokens=8192,
            learning_rate=1e-3,
            validation_users=5000,
        )
    return replace(recipe, budget=budget or recipe.budget)
