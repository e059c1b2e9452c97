"""The table of Semantic IDs: the codes of each item, and its Parquet file. Shapes: N items, L levels."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from leafbeam.errors import CheckpointError, DataError, counted
from leafbeam.files import replacing
from leafbeam.index.items import as_id_array, check_item_ids, check_unique, decode_ids, ids_from_arrow
from leafbeam.index.level import check_codes, check_in_codebooks
from leafbeam.index.tensor_file import digest
from leafbeam.tables import open_parquet

_SIZES, _DIGEST = b"leafbeam.codebook_sizes", b"leafbeam.digest"  # entries of the schema's metadata


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SidTable:
    """The SID of each item, which `leafbeam fit-sids` writes, and training and index building read.

    Args:
        item_ids: int64 or text (N,), unique.
        codes: int64 (N, L); the code of level t lies in [0, codebook_sizes[t]).
        codebook_sizes: The number of codes of each level.

    Raises:
        CodesError: If the codes do not fit.
        ItemIdError: If the ids do not fit, or one is repeated.

    Examples:
        >>> SidTable(item_ids=np.array(["a", "b"]), codes=np.array([[0, 1], [2, 0]]), codebook_sizes=(3, 2)).num_levels
        2
    """

    item_ids: NDArray[np.int64] | NDArray[np.str_]
    codes: NDArray[np.int64]
    codebook_sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        codes, sizes = check_codes(self.codes, self.codebook_sizes)
        check_in_codebooks(codes, sizes)
        ids = check_item_ids(self.item_ids, len(codes))
        check_unique(ids)
        object.__setattr__(self, "item_ids", decode_ids(ids))
        object.__setattr__(self, "codes", np.ascontiguousarray(codes, dtype=np.int64))
        object.__setattr__(self, "codebook_sizes", sizes)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.codes)

    def __repr__(self) -> str:
        return f"SidTable({counted(len(self), 'item')}, codebook_sizes={self.codebook_sizes})"

    @property
    def num_levels(self) -> int:
        return len(self.codebook_sizes)

    @property
    def digest(self) -> str:
        """Return a digest of ids, codes and codebook sizes: sixteen hex digits."""
        sizes = np.array(self.codebook_sizes)
        return digest({"item_ids": as_id_array(self.item_ids), "codes": self.codes, "codebook_sizes": sizes})

    def save(self, path: str | Path) -> None:
        """Write one Parquet file with the columns item_id, code_0 .. code_{L-1}.

        The codebook sizes and the digest are in the schema's metadata.
        """
        columns = {f"code_{level}": pa.array(self.codes[:, level]) for level in range(self.num_levels)}
        ids = pa.array(self.item_ids.tolist(), pa.int64() if self.item_ids.dtype.kind == "i" else pa.string())
        table = pa.table({"item_id": ids, **columns})
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        metadata = {_SIZES: json.dumps(self.codebook_sizes), _DIGEST: self.digest}
        with replacing(Path(path)) as part:
            pq.write_table(table.replace_schema_metadata(metadata), part, write_page_checksum=True)

    @classmethod
    def load(cls, path: str | Path) -> "SidTable":
        """Read a file that `save` wrote. This costs one read, and one pass over ids and codes.

        A file of an older version has no digest and is not checked.

        Raises:
            CheckpointError: If the file is missing or damaged, or `save` did not write it.
        """
        try:
            with open_parquet(Path(path)) as file:
                table = file.read()
            names, metadata = table.column_names, table.schema.metadata or {}
        except DataError as error:
            raise CheckpointError(f"{path} is not a table of Semantic IDs ({error}): run `leafbeam fit-sids`") from error
        sizes, expected = metadata.get(_SIZES), metadata.get(_DIGEST)
        if sizes is None or "item_id" not in names:
            raise CheckpointError(f"{path} is a Parquet file, but not one that `leafbeam fit-sids` wrote")
        try:
            sizes = tuple(int(size) for size in json.loads(sizes))
            if not sizes:
                raise ValueError("no levels")
            if any(column.null_count for column in table.columns):
                raise ValueError("a column has nulls")
            codes = [table[f"code_{level}"].to_numpy() for level in range(len(sizes))]
            ids = numpy_ids(table["item_id"])
        except (pa.ArrowException, KeyError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise CheckpointError(f"{path} does not hold the ids and levels that its metadata names: {error}") from error
        sids = cls(item_ids=ids, codes=np.stack(codes, axis=1), codebook_sizes=sizes)
        if expected not in (None, sids.digest.encode()):
            raise CheckpointError(f"{path} is damaged: its ids and codes do not have the digest in its metadata; copy it again")
        return sids


def numpy_ids(ids: pa.ChunkedArray | pa.Array) -> NDArray[np.int64] | NDArray[np.str_]:
    """Return a column of ids as NumPy: int64, or fixed-width text."""
    return decode_ids(ids_from_arrow(ids))
