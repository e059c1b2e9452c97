"""From items and training sessions to Semantic IDs, in one call.

Shapes: N items, L levels, D dimensions.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, DataError
from leafbeam.semid.arrays import check_vectors
from leafbeam.semid.behaviour import Sessions
from leafbeam.semid.collisions import add_level, move_to_free_codes
from leafbeam.semid.embed import Embedding, EmbeddingConfig, embed
from leafbeam.semid.report import SidReport, report_on
from leafbeam.semid.rqkmeans import Progress, ResidualKMeans
from leafbeam.semid.rqvae import RqVae, RqVaeConfig
from leafbeam.semid.table import SidTable

__all__ = ["AnyQuantiser", "Method", "QuantiserConfig", "Repair", "SidFit", "fit_sids"]

AnyQuantiser = ResidualKMeans | RqVae
Method = Literal["kmeans", "rqvae"]
Repair = Literal["level", "free", "hungarian", "sinkhorn", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantiserConfig:
    """How vectors become codes.

    method: "kmeans" quantises the vectors themselves, "rqvae" what an autoencoder makes of them (`rqvae`: its settings).
    codebook_sizes: one number a level. repair: what is done about items with equal codes: "level" numbers them in an
    extra level, "free", "hungarian" and "sinkhorn" move them to free last codes (`move_to_free_codes`), "none" lets them
    share a SID.
    """

    codebook_sizes: tuple[int, ...] = (256, 256, 256)
    repair: Repair = "level"
    method: Method = "kmeans"
    rqvae: RqVaeConfig | None = None

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ArgumentError(f"method={self.method!r}: choose one of {', '.join(map(repr, get_args(Method)))}")
        if self.rqvae is not None and self.method != "rqvae":
            raise ArgumentError("rqvae= is for method='rqvae': residual k-means has no such settings")
        if self.repair not in get_args(Repair):
            raise ArgumentError(f"repair={self.repair!r}: choose one of {', '.join(map(repr, get_args(Repair)))}")
        ResidualKMeans(codebook_sizes=self.codebook_sizes)  # checks them


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SidFit:
    """The SIDs, the quantiser that made them (it encodes new items too), and the report."""

    table: SidTable
    quantiser: AnyQuantiser
    report: SidReport


def fit_sids(
    items: pa.Table,
    sessions: Sessions | None,
    *,
    embedding: EmbeddingConfig | None = None,
    vectors: NDArray[np.floating] | None = None,
    quantiser: QuantiserConfig | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> SidFit:
    """Semantic IDs of the rows of `items` (`item_id` first): embed, quantise, tell collisions apart, report.

    sessions: the training part of a split (`split.train`), all that the SIDs ever learn of behaviour; None leaves it out.
    vectors: a matrix (N, D) of one's own, in the order of `items`, in place of an embedding (`embed.load_vectors`).
    progress: called with what is being done and the share of it that is done.

    12,000 items take some 20 seconds on one core, 18,000 some 30. The same input and seed give the same codes.
    Raises DataError for input that nothing can be made from, ArgumentError for settings out of range, CodesError where
    a repair finds no free code left.

    >>> items = pa.table({"item_id": [1, 2, 3], "title": ["red shoe", "red boot", "green tea"]})
    >>> fit_sids(items, None, quantiser=QuantiserConfig(codebook_sizes=(2, 2))).table.codes.shape
    (3, 3)
    """
    quantiser = quantiser or QuantiserConfig()
    if "item_id" not in items.column_names or len(items) == 0:
        raise DataError(
            f"a table of {len(items):,} items with the columns {items.column_names}: item_id and one row are needed"
        )
    item_ids = _item_ids(items)
    if progress:
        progress("embedding items", 0.0)
    if vectors is not None:
        if embedding is not None:
            raise ArgumentError("give an embedding to make, or vectors of your own, not both")
        if len(vectors) != len(items):
            raise DataError(f"{len(vectors):,} vectors for {len(items):,} items: one row an item")
        own_ND = check_vectors(np.asarray(vectors), "the table of vectors")
        made = Embedding(vectors_ND=own_ND, text_columns=(), items_without_text=len(items), items_without_behaviour=len(items))
    else:
        made = embed(items, sessions, config=embedding or EmbeddingConfig(), seed=seed)
    if progress:
        progress("embedding items", 1.0)

    vectors_ND = made.vectors_ND
    fitted: AnyQuantiser = ResidualKMeans(codebook_sizes=quantiser.codebook_sizes, seed=seed)
    if quantiser.method == "rqvae":
        fitted = RqVae(codebook_sizes=quantiser.codebook_sizes, seed=seed, config=quantiser.rqvae)
    fitted.fit(vectors_ND, progress)
    encoded_NL, before_last_ND = fitted.encode_with_residuals(vectors_ND)
    sizes = fitted.codebook_sizes
    if quantiser.repair == "level":
        popularity_N = None if sessions is None else np.bincount(sessions.items_E, minlength=len(items))
        codes, extra = add_level(encoded_NL, popularity_N)
        sizes = (*sizes, extra)
    elif quantiser.repair == "none":
        codes = encoded_NL
    else:
        assignment = "greedy" if quantiser.repair == "free" else quantiser.repair
        codes = move_to_free_codes(encoded_NL, sizes, before_last_ND, fitted.centroids[-1], assignment)
    report = report_on(
        vectors_ND=vectors_ND,
        quantiser=fitted,
        encoded_NL=encoded_NL,
        codes=codes,
        codebook_sizes=sizes,
        method=quantiser.method,
        repair=quantiser.repair,
        text_columns=made.text_columns,
        items_without_text=made.items_without_text,
        items_without_behaviour=made.items_without_behaviour,
    )
    return SidFit(table=SidTable(item_ids=item_ids, codes=codes, codebook_sizes=sizes), quantiser=fitted, report=report)


def _item_ids(items: pa.Table) -> NDArray[np.int64] | NDArray[np.str_]:
    ids = items["item_id"]
    return ids.to_numpy() if pa.types.is_integer(ids.type) else np.asarray(ids.to_pylist(), dtype=np.str_)
