"""Change: a batch of items that is checked, as it is logged and made. Shapes: n items, L levels, D dimensions of a vector."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leafbeam import semid
from leafbeam.catalog import CatalogTransaction
from leafbeam.errors import ArgumentError, DataError, counted, short_repr
from leafbeam.ids import ID_KINDS, kind_of_id
from leafbeam.index import Version
from leafbeam.ingest.answers import ChangeAnswer
from leafbeam.ingest.attributes import table_of
from leafbeam.ingest.lines import ItemLine, Lines, problem_of_new_id
from leafbeam.json_reader import Json
from leafbeam.retrieve import ItemMemory

Operation = Literal["put", "patch", "delete"]
_FIELDS = ("operation", "item_ids", "codes", "attributes")
MAX_GROUPS = 64  # different sets of columns in a batch of patches; each costs a scan of the table


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AttributeGroup:
    """Items with the same columns: their rows in the change, and a table of their attributes."""

    rows: NDArray[np.int64]
    table: pa.Table = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Change:
    """Items to put (all their columns are written), to patch (only the given columns are written) or to delete.

    codes: the codes of each item; None keeps its present codes. The result does not depend on what was there before, so making
    a change twice has the same effect as making it once.
    """

    operation: Operation
    item_ids: list[int | str]
    codes: list[list[int] | None]
    attributes: list[Mapping[str, object]]
    groups: tuple[AttributeGroup, ...]

    @classmethod
    def of_record(cls, record: Json, schema: pa.Schema) -> "Change":
        """Return the change of a log's record. Raises DataError if it cannot be read or no longer fits the table."""
        try:
            operation, ids, codes, rows = (record[name] for name in _FIELDS)
            right = operation in get_args(Operation) and all(isinstance(item_id, int | str) for item_id in ids)
            right = right and all(isinstance(row, Mapping) for row in rows) and len(ids) == len(codes)
            if not right or (operation != "delete" and len(ids) != len(rows)):
                raise TypeError("other fields than a change has")
        except (KeyError, TypeError) as error:
            raise DataError(f"a change in the log of requests cannot be read: {error}") from error
        groups, problems = _groups_of(operation, rows, schema)
        if problems:
            row, problem = next(iter(problems.items()))
            raise DataError(f"item {short_repr(ids[row])}: {problem}")
        return cls(operation=operation, item_ids=ids, codes=codes, attributes=rows, groups=groups)

    def record(self) -> dict[str, object]:
        """Return the change as `of_record` reads it, with values that JSON has or that are written as text."""
        return {name: getattr(self, name) for name in _FIELDS}

    def counts(self, version: Version, num_lines: int) -> ChangeAnswer:
        """Return the effect on a version. num_lines: the lines of the request, to count items to delete that do not exist."""
        live_n = version.knows(self.item_ids) if self.item_ids else np.zeros(0, np.bool_)
        num_live, before = int(live_n.sum()), version.number
        if self.operation == "delete":
            ignored, number = num_lines - num_live, before + (num_live > 0)
            return ChangeAnswer(inserted=0, updated=0, deleted=num_live, ignored=ignored, number=number)
        number = before + any(codes is not None for codes in self._new_codes(version, live_n))
        return ChangeAnswer(inserted=len(live_n) - num_live, updated=num_live, deleted=0, ignored=0, number=number)

    def make(self, transaction: CatalogTransaction, version: Version) -> None:
        """Add the change to a transaction on a version."""
        if not self.item_ids:
            return
        live_n = version.knows(self.item_ids)
        if self.operation == "delete":
            transaction.delete(self._ids(np.flatnonzero(live_n)), with_attributes=True)
            return
        codes = self._new_codes(version, live_n)
        moves_n = np.array([row is not None for row in codes])
        for group in self.groups:
            for is_live, moves in ((False, True), (True, True), (True, False)):
                chosen = np.flatnonzero((live_n[group.rows] == is_live) & (moves_n[group.rows] == moves))
                rows = group.rows[chosen]
                if not len(rows):
                    continue
                table = group.table.take(chosen) if group.table.num_columns else None
                if moves:
                    change = transaction.replace if is_live else transaction.insert
                    change(np.array([codes[row] for row in rows.tolist()]), self._ids(rows), table)
                elif table is not None:
                    transaction.update(self._ids(rows), table)

    def _ids(self, rows: NDArray[np.int64]) -> list[int | str]:
        return [self.item_ids[row] for row in rows.tolist()]

    def _new_codes(self, version: Version, live_n: NDArray[np.bool_]) -> list[list[int] | None]:
        """Return the codes of items that are new or have others; None for those that stay."""
        codes, live = list(self.codes), np.flatnonzero(live_n)
        for row, before in zip(live.tolist(), version.codes_of(self._ids(live)).tolist() if len(live) else (), strict=True):
            if codes[row] == before:
                codes[row] = None
        return codes


class ChangePlanner:
    """Checks batches against a catalog's table and a version of its index.

    encoder: gives new items codes; or why there is none, for the message. memory: takes new items, whose ids are of its kind.
    """

    def __init__(self, encoder: "semid.ItemEncoder | str", memory: ItemMemory | None = None) -> None:
        self._encoder, self._memory = encoder, memory

    def plan(self, operation: Operation, lines: Lines, version: Version, schema: pa.Schema, *, missing_ok: bool) -> Change:
        """Return the change of some lines.

        Args:
            operation: The kind of change.
            lines: The items.
            version: The version of the index that the change is made on.
            schema: The columns of the table.
            missing_ok: Whether an item to delete may be missing.

        Raises:
            BatchError: If a line is wrong; it names every bad line.
        """
        kinds = {"index": version.id_kind, "catalog": _kind_of_column(schema)}
        kinds["item memory"] = None if self._memory is None else self._memory.id_kind
        if not any(kinds.values()):
            kinds["batch"] = next((kind_of_id(item.item_id) for item in lines.items), None)
        lines.check(lambda item: _problem_of_kind(item, kinds))
        ids = [item.item_id for item in lines.items]
        live = dict(zip(ids, version.knows(ids).tolist() if ids else (), strict=True))
        if operation == "delete":
            lines.check(lambda item: None if missing_ok or live[item.item_id] else "the index does not have it")
            lines.raise_problems()
            ids = [item.item_id for item in lines.items if live[item.item_id]]
            return Change(operation=operation, item_ids=ids, codes=[None] * len(ids), attributes=[], groups=())
        if operation == "patch":
            lines.check(lambda item: None if live[item.item_id] else "the index does not have it: PUT it")
        lines.check(lambda item: None if live[item.item_id] else problem_of_new_id(item.item_id))
        known = set(schema.names) - {"item_id"}
        lines.check(lambda item: _problem_of_columns(item, known))
        lines.check(lambda item: self._problem_of_codes(item, version, is_live=live[item.item_id]))
        groups, problems = _groups_of(operation, [item.attributes for item in lines.items], schema)
        codes, by_number = self._encode(lines.items, live, version, groups)
        by_number |= {lines.items[row].number: problem for row, problem in problems.items()}
        lines.check(lambda item: by_number.get(item.number))
        lines.raise_problems()
        attributes = [item.attributes for item in lines.items]
        ids = [item.item_id for item in lines.items]
        return Change(operation=operation, item_ids=ids, codes=codes, attributes=attributes, groups=groups)

    def _problem_of_codes(self, item: ItemLine, version: Version, *, is_live: bool) -> str | None:
        codes, sizes, encoder = item.codes, version.codebook_sizes, self._encoder
        if codes is not None:
            if len(codes) != len(sizes):
                return f"it has {counted(len(codes), 'code')}: expected {len(sizes)}, one for each level"
            wrong = next(
                (level for level, (code, size) in enumerate(zip(codes, sizes, strict=True)) if not 0 <= code < size), None
            )
            return (
                None if wrong is None else f"code {codes[wrong]} of level {wrong} is outside its codebook of {sizes[wrong]:,}"
            )
        if is_live and item.vector is None:
            return None
        if isinstance(encoder, str):
            return f"it has no codes, and they cannot be computed: {encoder}"
        if item.vector is None:
            return None if encoder.embedder is not None else "it has neither codes nor a vector"
        if len(item.vector) != encoder.num_dims:
            return f"its vector has {counted(len(item.vector), 'dimension')}: expected {encoder.num_dims}"
        fits = all(abs(value) <= 1e12 for value in item.vector)
        return None if fits else "its vector has numbers that are not finite, or beyond 1e12"

    def _encode(
        self, items: Sequence[ItemLine], live: Mapping[int | str, bool], version: Version, groups: Sequence[AttributeGroup]
    ) -> tuple[list[list[int] | None], dict[int, str]]:
        """Return the codes of all items; and what is wrong with lines, by number."""
        codes: list[list[int] | None] = [item.codes for item in items]
        new = np.array(
            [row for row, item in enumerate(items) if item.codes is None and item.vector is None and not live[item.item_id]]
        )
        with_vector = [row for row, item in enumerate(items) if item.vector is not None]
        if not len(new) and not with_vector:
            return codes, {}
        encoder = self._encoder
        assert not isinstance(encoder, str)
        rows, vectors = (
            [*with_vector],
            [np.array([items[row].vector for row in with_vector], np.float32)] if with_vector else [],
        )
        if len(new):
            (group,) = groups  # a put has one
            missing = [name for name in encoder.columns if name not in group.table.column_names]
            if missing:
                raise ArgumentError(
                    f"the table has no column {missing[0]!r}, from which the codes of new items are computed: add it, or send "
                    "codes"
                )
            text_nD = encoder.embed(group.table.take(new))
            if unknown := new[~text_nD.any(axis=1)].tolist():
                problem = f"no word of {', '.join(encoder.columns)} is known to the run's encoder: send more text, or codes"
                return codes, {items[row].number: problem for row in unknown}
            rows, vectors = [*rows, *new.tolist()], [*vectors, text_nD]
        there = [items[row].item_id for row in rows if live[items[row].item_id]]
        own = dict(zip(there, version.codes_of(there).tolist() if there else (), strict=True))
        own_codes = [own.get(items[row].item_id) for row in rows]
        for row, item_codes in zip(
            rows, encoder.encode_vectors(np.concatenate(vectors), version, own_codes).tolist(), strict=True
        ):
            codes[row] = item_codes
        return codes, {}


def _problem_of_kind(item: ItemLine, kinds: Mapping[str, str | None]) -> str | None:
    """Return what is wrong with the type of an item's id. kinds: the kind of ids of each part; None admits both."""
    own = kind_of_id(item.item_id)
    whose, kind = next(((name, kind) for name, kind in kinds.items() if kind not in (None, own)), (None, None))
    if kind is None:
        return None
    return f"item_id is {short_repr(item.item_id)}, but the ids of this {whose} are {ID_KINDS[kind]}"


def _kind_of_column(schema: pa.Schema) -> str | None:
    """Return the kind of ids that the table's `item_id` holds; None where it tells nothing."""
    column = schema.field("item_id").type
    column = column.value_type if pa.types.is_dictionary(column) else column
    if pa.types.is_integer(column):
        return "i"
    return "S" if pa.types.is_string(column) or pa.types.is_large_string(column) else None


def _problem_of_columns(item: ItemLine, known: set[str]) -> str | None:
    unknown = next((name for name in item.attributes if name not in known), None)
    if unknown is None:
        return None
    names = ", ".join(sorted(known)[:20])
    return f"there is no column {short_repr(unknown)}: the table has {names}; a line may also have codes or vector"


def _groups_of(
    operation: Operation, attributes: Sequence[Mapping[str, object]], schema: pa.Schema
) -> tuple[tuple[AttributeGroup, ...], dict[int, str]]:
    """Return the items with the same columns, and what is wrong with items, by row.

    Raises ArgumentError for too many groups.
    """
    if operation == "delete":
        return (), {}
    columns = tuple(name for name in schema.names if name != "item_id")
    rows_of: dict[tuple[str, ...], list[int]] = {}
    for row, found in enumerate(attributes):
        names = columns if operation == "put" else tuple(name for name in columns if name in found)
        rows_of.setdefault(names, []).append(row)
    if len(rows_of) > MAX_GROUPS:
        raise ArgumentError(
            f"the lines name {len(rows_of):,} different sets of columns: expected at most {MAX_GROUPS} in a batch; send those "
            "with the same columns together"
        )
    groups: list[AttributeGroup] = []
    problems: dict[int, str] = {}
    for names, rows in rows_of.items():
        table, found = table_of([attributes[row] for row in rows], schema, names)
        groups.append(AttributeGroup(rows=np.array(rows), table=table))
        problems |= {rows[index]: problem for index, problem in found.items()}
    return tuple(groups), problems
