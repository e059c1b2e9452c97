"""Settings for embedding and quantising items. This module imports no optional dependency."""

from dataclasses import dataclass
from math import log2
from typing import Literal

from leafbeam.errors import ArgumentError, check_choice, check_number, check_whole

Method = Literal["kmeans", "rqvae"]
CollisionStrategy = Literal["spread", "level", "free", "hungarian", "sinkhorn", "none"]
Gradient = Literal["straight-through", "rotation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingConfig:
    """The parts of an item's vector: text, co-occurrence, or both.

    Args:
        text: "tfidf" (nothing to download), "none", or the name or directory of a sentence-transformers model.
        text_columns: The columns of the item table to read; None reads every column of words.
        text_dims: The dimensions of the TF-IDF vectors after the SVD.
        behaviour_dims: The dimensions of the co-occurrence vectors; 0 leaves them out.
        window: The largest number of positions between two items of a session that co-occur.
        behaviour_weight: The length of the co-occurrence part relative to a text part of length 1.
        neighbours: An item without co-occurrence gets the mean co-occurrence vector of so many nearest items by text; 0
            leaves zeros.
    """

    text: str = "tfidf"
    text_columns: tuple[str, ...] | None = None
    text_dims: int = 256
    behaviour_dims: int = 128
    window: int = 5
    behaviour_weight: float = 1.5
    neighbours: int = 10

    def __post_init__(self) -> None:
        if not self.text:
            raise ArgumentError("text='': choose 'tfidf', 'none' or a sentence-transformers model")
        check_whole(text_dims=self.text_dims, window=self.window)
        check_whole(0, behaviour_dims=self.behaviour_dims, neighbours=self.neighbours)
        check_number(exclusive=True, behaviour_weight=self.behaviour_weight)
        if self.text == "none" and self.behaviour_dims == 0:
            raise ArgumentError("text='none' and behaviour_dims=0 leave nothing to make vectors from")


@dataclass(frozen=True, kw_only=True, slots=True)
class RqVaeConfig:
    """The sizes and the training of an RQ-VAE.

    Args:
        hidden: The width of the encoder's hidden layer, which the decoder mirrors.
        latent: The width of the quantised space.
        steps: The number of batches.
        batch: The number of vectors in a batch.
        warmup: The share of the steps that trains the autoencoder alone, before k-means initialises the codebooks.
        commitment: The weight of the loss that pulls latents to their codes.
        decay: The decay of the exponential moving averages of the codes.
        revive: A code whose average load is below this share of an even load is dead, and is moved to a residual of the
            batch.
        gradient: How the gradient passes the quantiser: "straight-through" copies it, "rotation" rotates and scales it (Fifty
            et al., 2024).
    """

    hidden: int = 256
    latent: int = 64
    steps: int = 1500
    warmup: float = 0.3
    batch: int = 512
    learning_rate: float = 2e-3
    commitment: float = 0.25
    decay: float = 0.95
    revive: float = 0.05
    gradient: Gradient = "straight-through"

    def __post_init__(self) -> None:
        check_whole(hidden=self.hidden, latent=self.latent, steps=self.steps, batch=self.batch)
        check_number(below=1, warmup=self.warmup, decay=self.decay, revive=self.revive)
        check_number(exclusive=True, learning_rate=self.learning_rate)
        check_number(commitment=self.commitment)
        check_choice("gradient", self.gradient, Gradient)


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantiserConfig:
    """The method by which vectors become codes, with its settings.

    Args:
        codebook_sizes: The number of codes of each level. None chooses by the number of items: one large level (two
            beyond 200,000 items), which trains faster and recommends better than several levels of equal size. For an
            RQ-VAE, None is four levels of 256.
        collision_strategy: The treatment of items with equal codes. "spread" and "level" add a level. That of "spread"
            has one code per item, but at most 16,384 unless a prefix has more items; each code is for one item or for a
            few dissimilar ones. That of "level" numbers the items of each SID (TIGER). "free", "hungarian" and
            "sinkhorn" move items to free codes of the last level (`assign_free_codes`); "none" lets them share a SID.
            None is "spread", or "level" for an RQ-VAE or codebook_sizes of your own.
        method: "kmeans" quantises the vectors, "rqvae" a learned latent space.
        rqvae: The settings of an RQ-VAE.
    """

    codebook_sizes: tuple[int, ...] | None = None
    collision_strategy: CollisionStrategy | None = None
    method: Method = "kmeans"
    rqvae: RqVaeConfig | None = None

    def __post_init__(self) -> None:
        check_choice("method", self.method, Method)
        if self.rqvae is not None and self.method != "rqvae":
            raise ArgumentError("rqvae= is for method='rqvae': residual k-means has no such settings")
        if self.collision_strategy is not None:
            check_choice("collision_strategy", self.collision_strategy, CollisionStrategy)
        if self.codebook_sizes is not None:
            object.__setattr__(self, "codebook_sizes", check_codebook_sizes(self.codebook_sizes))

    @property
    def default_collision_strategy(self) -> CollisionStrategy:
        """Return the strategy that `collision_strategy=None` stands for."""
        return "spread" if self.codebook_sizes is None and self.method == "kmeans" else "level"

    def sizes_for(self, num_items: int) -> tuple[int, ...]:
        """Return the codebook sizes for a number of items.

        Examples:
            >>> QuantiserConfig().sizes_for(12_000)
            (2048,)
        """
        if self.codebook_sizes is not None:
            return self.codebook_sizes
        if self.method == "rqvae":
            return (256, 256, 256, 256)
        if num_items > 200_000:
            return (2048, 256)
        return (min(max(2 ** round(log2(max(num_items, 1) / 6)), 16), 2048),)  # about six items a code


def check_codebook_sizes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes as plain integers; raise ArgumentError unless there are 1 to 16 levels of at least one code each."""
    plain = tuple(int(size) for size in sizes)
    if not 1 <= len(plain) <= 16 or min(plain) < 1:
        raise ArgumentError(f"codebook_sizes={sizes}: expected 1 to 16 levels of at least one code each")
    return plain
