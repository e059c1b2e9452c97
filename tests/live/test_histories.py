"""Any history of changes equals a dictionary: in memory, on disk, merged, and through filters."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leafbeam.live import LiveIndex
from tests.live.dictionary import NEVER, SIZES, Model, agree, content, started, union

fixture_is_fine = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def row_of(draw: st.DrawFn) -> tuple[int, ...]:
    return tuple(draw(st.integers(0, min(size, 4) - 1)) for size in SIZES)


KEYS = {"int": list(range(12)), "text": ["-", "é", *"abcdefgh", "längere", "z" * 20]}


@st.composite
def histories(draw: st.DrawFn) -> tuple[Model, list[list[tuple[str, list[Any], list[tuple[int, ...]]]]]]:
    """Items to start with, and groups of operations, each a transaction."""
    keys = KEYS[draw(st.sampled_from(sorted(KEYS)))]
    start = {key: row_of(draw) for key in draw(st.lists(st.sampled_from(keys), unique=True, max_size=8))}
    items, groups = set(start), []
    for _ in range(draw(st.integers(1, 8))):
        group = []
        for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
            kind = draw(st.sampled_from(["insert", "insert", "delete", "replace", "compact", "open"]))
            if kind in ("compact", "open"):
                group.append((kind, [], []))
                continue
            legal = sorted(items) if kind != "insert" else [key for key in keys if key not in items]
            if not legal:
                continue
            chosen = draw(st.lists(st.sampled_from(legal), unique=True, min_size=1, max_size=4))
            items = items | set(chosen) if kind == "insert" else items - set(chosen) if kind == "delete" else items
            group.append((kind, chosen, [row_of(draw) for _ in chosen]))
        groups.append(group)
    return start, groups


def apply(items: Model, kind: str, ids: list[Any], rows: list[tuple[int, ...]]) -> None:
    """The oracle's side of an operation."""
    if kind in ("delete", "replace"):
        for key in ids:
            del items[key]
    if kind in ("insert", "replace"):
        items.update(zip(ids, rows, strict=True))


def perform(target: Any, kind: str, ids: list[Any], rows: list[tuple[int, ...]]) -> None:
    if kind == "delete":
        target.delete(ids)
    else:
        getattr(target, kind)(rows, ids)


def run_history(path: Path | None, start: Model, groups: list[Any]) -> tuple[LiveIndex, Model]:
    index, items = started(path, start, sync=False), dict(start)
    held = [(index.version(), dict(items))]
    for group in groups:
        changes = [one for one in group if one[0] not in ("compact", "open")]
        if len(changes) == 1:
            perform(index, *changes[0])
        elif changes:
            with index.transaction() as transaction:
                for one in changes:
                    perform(transaction, *one)
        for one in changes:
            apply(items, *one)
        kinds = {one[0] for one in group}
        if "compact" in kinds:
            index.compact(wait=True)
            assert len(index.version().segments) == 1
        if "open" in kinds and path is not None:
            index.close()
            index = LiveIndex.open(path, sync=False, compaction=NEVER)
        agree(index, items)
        held.append((index.version(), dict(items)))
    for version, expected in held:
        assert list(content(version).items()) == list(expected.items())
    return index, items


@settings(max_examples=150, suppress_health_check=fixture_is_fine)
@given(histories())
def test_any_history_equals_a_dictionary_and_compaction_equals_a_build_of_the_union(history: tuple[Model, Any]) -> None:
    index, items = run_history(None, *history)
    index.compact(wait=True)
    agree(index, items)
    assert index.version().segments[0].trie.version == union(items, SIZES).version


@settings(max_examples=150, suppress_health_check=fixture_is_fine)
@given(histories())
@pytest.mark.slow
def test_any_history_on_disk_equals_a_dictionary(tmp_path_factory: pytest.TempPathFactory, history: tuple[Model, Any]) -> None:
    path = tmp_path_factory.mktemp("history") / "shop"
    index, items = run_history(path, *history)
    number = index.version().number
    index.close()
    with LiveIndex.open(path, read_only=True) as reader:
        agree(reader, items)
        assert reader.version().number == number
