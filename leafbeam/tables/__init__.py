"""Every file of rows that a user brings: CSV, Parquet, JSON, JSON lines and arrays, read with one policy.

`reader` has the policy; `table` says how a mistake is named.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports a name when it is first used
    from leafbeam.tables.arrays import read_array
    from leafbeam.tables.columns import TimeUnit, column, complete_rows, nanoseconds
    from leafbeam.tables.csv_rows import CsvFormat
    from leafbeam.tables.histories import rows_of_lists
    from leafbeam.tables.ids import Ids, read_ids, same_type
    from leafbeam.tables.parquet import open_parquet, read_parquet
    from leafbeam.tables.reader import Rows, read_rows, read_table
    from leafbeam.tables.table import SourceTable, describe, listed

__all__ = [
    "CsvFormat",
    "Ids",
    "Rows",
    "SourceTable",
    "TimeUnit",
    "column",
    "complete_rows",
    "describe",
    "listed",
    "nanoseconds",
    "open_parquet",
    "read_array",
    "read_ids",
    "read_parquet",
    "read_rows",
    "read_table",
    "rows_of_lists",
    "same_type",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
