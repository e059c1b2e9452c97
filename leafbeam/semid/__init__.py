"""Semantic IDs: embed items, quantise the vectors into codes, resolve collisions. Names load on first use."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.semid.code_vectors import CodeVectors
    from leafbeam.semid.config import CollisionStrategy, EmbeddingConfig, Method, QuantiserConfig, RqVaeConfig
    from leafbeam.semid.embedding import Embedding, embed, text_vectors
    from leafbeam.semid.fit import SidFit, fit_sids
    from leafbeam.semid.item_encoder import ItemEncoder
    from leafbeam.semid.quantiser import Quantiser
    from leafbeam.semid.report import LevelReport, SidReport, plot_report
    from leafbeam.semid.rqkmeans import ResidualKMeans
    from leafbeam.semid.rqvae import RqVae
    from leafbeam.semid.table import SidTable
    from leafbeam.semid.texts import text_columns
    from leafbeam.semid.vectors import VectorBlocks, load_vectors

__all__ = [
    "CodeVectors",
    "CollisionStrategy",
    "Embedding",
    "EmbeddingConfig",
    "ItemEncoder",
    "LevelReport",
    "Method",
    "Quantiser",
    "QuantiserConfig",
    "ResidualKMeans",
    "RqVae",
    "RqVaeConfig",
    "SidFit",
    "SidReport",
    "SidTable",
    "VectorBlocks",
    "embed",
    "fit_sids",
    "load_vectors",
    "plot_report",
    "text_columns",
    "text_vectors",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
