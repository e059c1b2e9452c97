"""Which column of the items names an item to people."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import pyarrow as pa


def title_column(schema: pa.Schema) -> str | None:
    """Return the column `title`, else `name`, in any case, else the first of text; None where no column is text.

    >>> title_column(pa.schema({"item_id": pa.string(), "kind": pa.string(), "Name": pa.string()}))
    'Name'
    """
    names = [field.name for field in schema if field.name != "item_id" and _is_text(field.type)]
    known = {name.lower(): name for name in reversed(names)}
    return known.get("title") or known.get("name") or next(iter(names), None)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
