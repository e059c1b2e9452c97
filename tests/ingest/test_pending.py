"""A change that is decided and can never be made is given up: no other waits for it, and no start."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from leafbeam.errors import BatchError, DataError, ItemIdError, LogError
from leafbeam.retrieve import ItemMemory
from tests.ingest.shop import KEY, Crash, Shop, counts, raising, rows, state


@pytest.mark.parametrize("known_by", ["table", "memory"])
def test_ids_of_an_empty_index_are_of_the_kind_of_the_table_and_of_the_item_memory(shop: Shop, known_by: str):
    fitted = ItemMemory.fit([], np.array([0]), np.array([], np.int64)) if known_by == "table" else shop.memory
    with shop.writer(memory=fitted) as writer:
        empty = writer.catalog.lookup(["i0"]).slice(0, 0)
        writer.delete(rows(*({"item_id": f"i{n}"} for n in range(6))))
        writer.catalog.compact(wait=True)
        if known_by == "memory":
            writer.catalog.reload(empty.set_column(0, "item_id", pa.array([], pa.int64())))
        whose = {"table": "this catalog", "memory": "this item memory"}[known_by]
        with pytest.raises(BatchError, match=f"line 1: item_id is 7, but the ids of {whose} are strings"):
            writer.put(rows({"item_id": 7, "codes": [1, 1]}))
        writer.catalog.reload(empty)
        assert writer.put(rows({"item_id": "seven", "codes": [1, 1]})).inserted == 1
    with shop.writer(memory=fitted) as writer:
        assert list(state(writer)["items"]) == ["seven"]


BAD = {"operation": "put", "item_ids": [7], "codes": [[1, 1]], "attributes": [{"price": 3.0}]}


@pytest.mark.parametrize("change", [BAD, BAD | {"attributes": [{"price": "x"}]}, {"operation": "rollback", "snapshot": "s"}])
@pytest.mark.parametrize("restarts", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_change_on_disk_that_can_never_be_made_stops_no_other_and_no_start(
    shop: Shop, change: dict[str, Any], restarts: bool
):
    with shop.writer() as writer:
        writer.put(rows({"item_id": "first", "codes": [1, 1]}))
        before = state(writer)
        writer._live.persist().append(KEY, {"inserted": 1}, change)
        if not restarts:
            assert writer.put(rows({"item_id": "i0", "price": 1})).updated == 1
    for _ in range(2):
        with shop.writer() as writer:
            if restarts:
                assert state(writer) == before
            assert state(writer)["items"].keys() == before["items"].keys()
            assert writer.catalog.rules.report.agrees
    with shop.writer() as writer:  # its request may come again
        assert writer.put(rows({"item_id": "new", "codes": [1, 1]}), KEY) == counts(inserted=1, number=2)


def test_an_error_of_a_decided_change_that_would_come_again_is_the_answer_and_others_are_made(shop: Shop, monkeypatch):
    with shop.writer() as writer:
        before = state(writer)
        with monkeypatch.context() as patch:
            patch.setattr(ItemMemory, "insert", raising(ItemIdError("of another kind")))
            with pytest.raises(ItemIdError, match="of another kind"):
                writer.put(rows({"item_id": "bad", "title": "green tea"}), KEY)
        assert state(writer) == before
        assert writer.put(rows({"item_id": "bad", "title": "green tea"}), KEY).inserted == 1


def test_a_table_that_another_program_has_open_postpones_a_decided_change(shop: Shop, monkeypatch):
    with shop.writer() as writer:
        writer.put(rows({"item_id": "first", "codes": [1, 1]}))
        with monkeypatch.context() as patch:
            patch.setattr("leafbeam.catalog.active_rules.ActiveRules.advance", raising(DataError("in use", may_pass=True)))
            for _ in range(2):
                with pytest.raises(LogError, match="in use"):
                    writer.put(rows({"item_id": "late", "codes": [1, 2]}), KEY)
        assert writer.put(rows({"item_id": "late", "codes": [1, 2]}), KEY).inserted == 1
        assert "late" in state(writer)["items"]


@pytest.mark.parametrize("decided", [False, True])
def test_a_damaged_snapshot_is_refused_and_changes_go_on_also_after_a_restart(shop: Shop, decided: bool):
    with shop.writer() as writer:
        writer.snapshot("s")
        writer.put(rows({"item_id": "new", "codes": [1, 1], "price": 1}))
        before = state(writer)
        items = shop.folder / "live" / "snapshots" / "s" / "items.parquet"
        content = items.read_bytes()
        items.write_bytes(bytes(byte ^ 0xFF if 4 <= at < len(content) // 2 else byte for at, byte in enumerate(content)))
        if decided:  # before the damage
            writer._live.persist().append(KEY, {}, {"operation": "rollback", "snapshot": "s"})
        else:
            with pytest.raises(DataError, match=r"items\.parquet cannot be read as Parquet .*restore it"):
                writer.rollback("s", KEY)
            assert writer._live.persist().pending is None
            assert state(writer) == before
            assert writer.put(rows({"item_id": "i0", "codes": [1, 1]})).updated == 1
            before = state(writer)
    with shop.writer() as writer:
        assert state(writer) == before
        items.write_bytes(content)
        assert writer.rollback("s", KEY).deleted == 1
        assert "new" not in state(writer)["items"]


@pytest.mark.parametrize("stage", ["table", "index"])
def test_a_rollback_that_is_decided_is_made_after_a_crash_at_any_later_moment(shop: Shop, stage: str):
    crash = {
        "table": "leafbeam.live.commit_store.CommitStore.commit",
        "index": "leafbeam.catalog.active_rules.ActiveRules.advance",
    }[stage]
    with shop.writer() as writer:
        writer.snapshot("s")
        before = state(writer)
        writer.put(rows({"item_id": "new", "codes": [1, 1], "price": 1}))
        writer.delete(rows({"item_id": "i0"}))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):  # noqa: PT012
            patch.setattr(crash, raising(Crash()))
            writer.rollback("s", KEY)
    with shop.writer() as writer:
        assert state(writer) == before
        assert writer.rollback("s", KEY) == counts(inserted=1, updated=5, deleted=1, number=3)
