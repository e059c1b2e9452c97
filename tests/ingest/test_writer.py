"""Batches of items are checked as a whole, made once, and there after a restart."""

import datetime as dt
import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from leafbeam.catalog import Boost, Rule
from leafbeam.errors import (
    ArgumentError,
    BatchError,
    ConflictError,
    DataError,
    LogError,
    RuleError,
    UnknownBoostError,
    UnknownRuleError,
)
from leafbeam.index import Trie, Version
from leafbeam.ingest import Lines
from leafbeam.ingest.changes import Change, ChangePlanner
from leafbeam.live import disk
from leafbeam.live.commit_store import CommitStore
from leafbeam.live.transaction import WriteSet
from leafbeam.retrieve import ItemMemory
from leafbeam.tables.as_json import rows_of
from tests.ingest.shop import KEY, TITLES, Crash, Shop, counts, raising, rows, state


def test_a_batch_with_wrong_lines_changes_nothing_and_names_every_one(shop: Shop):
    with shop.writer() as writer:
        before = state(writer)
        body = b"\n".join(
            [
                b'{"item_id": "ok", "title": "red tea"}',
                b"{nonsense",
                b'{"title": "no id"}',
                b'{"item_id": "c1", "codes": [4, 0]}',
                b'{"item_id": "c2", "codes": [1]}',
                b'{"item_id": "c3", "codes": [1, "x"]}',
                b'{"item_id": "t1", "title": "tea", "colour": "red"}',
                b'{"item_id": "t2", "title": "tea", "price": "cheap"}',
                b'{"item_id": "t3", "title": "tea", "stock": 2.5}',
                b'{"item_id": "t4", "title": "tea", "seen": "yesterday"}',
                b'{"item_id": "u1", "title": "xyzzy"}',
                b"",
                b'{"item_id": "ok", "codes": [1, 1]}',
                b'{"item_id": 7, "codes": [1, 1]}',
                b"[1, 2]",
                b'{"item_id": "v", "vector": [1.0]}',
                b'{"item_id": "' + b"x" * 300 + b'"}',
                b'{"item_id": "a\\u0000b"}',
                b'{"item_id": "\\ud800"}',
            ]
        )
        with pytest.raises(
            BatchError,
            match=r"18 of 18 lines are wrong, so nothing was changed: line 1: item 'ok' .*; line 2: it cannot be read",
        ) as error:
            writer.put(Lines.of_json_lines(body))
        problems = error.value.lines
        assert list(problems) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19]
        expected = {
            1: "on more than one line",
            3: "no item_id",
            4: "code 4 of level 0 is outside its codebook of 4",
            5: "it has 1 code: expected 2",
            6: "list of whole numbers",
            7: "there is no column 'colour'",
            8: "price: 'cheap' is not a number",
            9: "stock: 2.5 is not a whole number",
            10: "seen: 'yesterday'",
            11: "no word of title is known",
            13: "on more than one line",
            14: "the ids of this index are strings",
            15: "expected an object",
            16: "1 dimension: expected",
            17: "300 bytes",
            18: "without NUL",
            19: "it cannot be read as JSON",
        }
        assert {number: text for number, text in expected.items() if text not in problems[number]} == {}
        assert state(writer) == before
        for call, content in ((writer.patch, {"item_id": "nope", "price": 1}), (writer.delete, {"item_id": "nope"})):
            with pytest.raises(BatchError, match="line 2: the index does not have it"):
                call(rows({"item_id": "i0"}, content))
        assert state(writer) == before
        assert writer.delete(rows({"item_id": "i0"}, {"item_id": "nope"}), missing_ok=True) == counts(
            deleted=1, ignored=1, number=1
        )


def test_a_live_item_keeps_its_codes_and_an_item_is_as_good_as_new_after_its_return(shop: Shop):
    with shop.writer() as writer:
        before = state(writer)["items"]["i3"][0]
        assert writer.put(rows({"item_id": "i3", "title": "red boot"})).number == 0
        assert state(writer)["items"]["i3"][0] == before
        vector = shop.encoder.embed(pa.table({"title": ["red boot"]}))[0].tolist()
        writer.put(rows({"item_id": "i3", "title": "red boot", "vector": vector}))
        assert state(writer)["items"]["i3"][0] == shop.codes[1].tolist()
        writer.delete(rows({"item_id": "i3"}))
        writer.patch(rows({"item_id": "i0", "codes": [2, 2]}))
        writer.put(rows({"item_id": "i3", "codes": before}))
        row = state(writer)["items"]["i3"]
        assert (row[0], row[1]["title"]) == (before, None)
        assert state(writer)["items"]["i0"][0] == [2, 2]
        assert state(writer)["items"]["i0"][1]["title"] == "red shoe"


@pytest.mark.parametrize("stage", ["commit", "index", "memory"])
def test_a_change_that_is_decided_is_made_after_a_crash_at_any_later_moment(shop: Shop, stage: str, monkeypatch):
    with pytest.raises(Crash), shop.writer() as writer:  # noqa: PT012
        writer.put(rows({"item_id": "first", "codes": [1, 1], "price": 1}))
        target = {
            "commit": ("leafbeam.live.commit_store.CommitStore.commit", raising(Crash())),
            "index": ("leafbeam.catalog.active_rules.ActiveRules.advance", raising(Crash())),
            "memory": ("leafbeam.retrieve.ItemMemory.insert", raising(Crash())),
        }[stage]
        with monkeypatch.context() as patch:
            patch.setattr(*target)
            writer.put(rows({"item_id": "new", "title": "green tea", "price": 2}, {"item_id": "i0", "price": 99}), KEY)
    with shop.writer() as writer:
        found = state(writer)
        assert found["items"]["new"][1]["price"] == 2.0
        assert found["items"]["i0"][1]["price"] == 99.0
        assert found["items"]["i0"][1]["title"] is None
        assert found["rules"]["cheap"] == ["first", "i3", "i4", "i5", "new"]
        assert writer.put(rows({"item_id": "new"}), KEY).inserted == 1
        assert state(writer) == found
        assert "new" in shop.memory.item_ids.tolist()


VALUES = (
    Decimal("15"), Decimal("1.5"), dt.datetime(2024, 5, 1, 12), dt.datetime(2024, 5, 1, tzinfo=dt.UTC), dt.date(2024, 5, 1),
    dt.time(12, 30), 7, 2**62, 1.5, 1e300, float("nan"), True, "7", "", "é", [1.5, float("inf")], [1, 2], ["a"],
    [dt.datetime(2024, 5, 1, 12)],
)  # fmt: skip
COLUMNS = (
    pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.date32(), pa.time64("us"), pa.timestamp("us"),
    pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.decimal128(9, 2), pa.decimal128(38, 0), pa.list_(pa.float64()),
    pa.list_(pa.string()), pa.list_(pa.timestamp("us")), pa.list_(pa.decimal128(9, 2)),
)  # fmt: skip


@pytest.mark.parametrize("kind", COLUMNS, ids=str)
def test_what_rows_of_a_table_may_put_into_a_column_is_the_same_when_it_is_read_from_the_log(shop: Shop, kind: pa.DataType):
    version, schema = Trie.load(shop.folder / "index.leafbeam"), pa.schema([("item_id", pa.string()), ("value", kind)])
    planned = 0
    for value in VALUES:
        try:
            lines = Lines.of_rows(rows_of(pa.table({"item_id": ["i0"], "value": [value]})))
            change = ChangePlanner("no encoder").plan("put", lines, Version.of(version), schema, missing_ok=False)
        except (BatchError, DataError):
            continue
        planned += 1
        again = Change.of_record(msgspec.json.decode(msgspec.json.encode(change.record())), schema)
        assert [group.table for group in again.groups] == [group.table for group in change.groups], value
    assert planned


def test_a_change_that_is_not_decided_is_not_made(shop: Shop, monkeypatch):
    with shop.writer() as writer:
        writer.put(rows({"item_id": "first", "codes": [1, 1]}))
        before = state(writer)

        with monkeypatch.context() as patch:
            patch.setattr(disk, "write", raising(OSError(28, "No space left on device")))
            with pytest.raises(LogError, match=r"No space left on device.*nothing was changed"):
                writer.put(rows({"item_id": "new", "codes": [1, 2], "price": 3}, {"item_id": "i0", "price": 99}))
        assert state(writer) == before
        assert writer.put(rows({"item_id": "new", "codes": [1, 2]})).inserted == 1
    with shop.writer() as writer:
        assert state(writer)["items"].keys() - before["items"].keys() == {"new"}


def test_a_decided_change_that_cannot_be_made_is_made_before_the_next(shop: Shop, monkeypatch):
    with shop.writer() as writer:
        writer.put(rows({"item_id": "first", "codes": [1, 1]}))
        with monkeypatch.context() as patch:
            patch.setattr("leafbeam.live.commit_store.CommitStore.commit", raising(LogError("the disk is gone")))
            with pytest.raises(LogError, match=r"the change is on disk but could not be applied \(the disk is gone\)"):
                writer.put(rows({"item_id": "late", "codes": [1, 2], "price": 4}), KEY)
            with pytest.raises(LogError, match="later changes wait for it"):
                writer.put(rows({"item_id": "later", "codes": [1, 3]}))
        assert writer.put(rows({"item_id": "late", "codes": [1, 2], "price": 4}), KEY).inserted == 1
        assert writer.put(rows({"item_id": "later", "codes": [1, 3]})).number == 3
        assert state(writer)["items"]["late"][1]["price"] == 4.0


def test_a_snapshot_is_gone_back_to_as_one_change(shop: Shop):
    with shop.writer() as writer:
        writer.put(rows({"item_id": "new", "codes": [1, 1], "price": 1}))
        before = state(writer)
        info = writer.snapshot("good")
        assert (info.name, info.num_items, info.index_version.endswith("+1")) == ("good", 7, True)
        with pytest.raises(ConflictError, match="already"):
            writer.snapshot("good")
        for name in ("", "../up", "a/b", ".hidden", "x.part", "n" * 65):
            with pytest.raises(ArgumentError, match="a snapshot's name"):
                writer.snapshot(name)
        writer.delete(rows({"item_id": "new"}, {"item_id": "i0"}))
        writer.put(rows({"item_id": "bad", "codes": [2, 2], "price": 1}, {"item_id": "i1", "codes": [0, 0]}))
        made = writer.rollback(None, KEY)
        assert made == counts(inserted=2, updated=5, deleted=1, number=4)
        assert state(writer) == before
        writer.delete(rows({"item_id": "i5"}))
    with shop.writer() as writer:
        assert writer.rollback(None, KEY) == made
        assert "i5" not in state(writer)["items"]
        assert writer.rollback("good").inserted == 1
        assert state(writer) == before
        assert [info.name for info in writer.snapshots] == ["good"]
        writer.delete_snapshot("good")
        for call in (writer.rollback, lambda: writer.rollback("good"), lambda: writer.delete_snapshot("good")):
            with pytest.raises(ArgumentError, match="there is no snapshot"):
                call()


def test_a_snapshot_that_is_half_removed_or_half_made_at_a_crash_is_none(shop: Shop, monkeypatch):
    def remove_one(path: Path, **_: Any) -> None:
        if path.exists():
            (path / "snapshot.json").unlink()
            raise Crash

    with shop.writer() as writer:
        writer.snapshot("good")
        writer.snapshot("better")
        with pytest.raises(ArgumentError, match="a snapshot's name"):
            writer.rollback("")
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", remove_one)
            with pytest.raises(Crash):
                writer.delete_snapshot("good")
        assert [info.name for info in writer.snapshots] == ["better"]
    with shop.writer() as writer:
        assert [info.name for info in writer.snapshots] == ["better"]
        assert [path.name for path in (shop.folder / "live" / "snapshots").iterdir()] == ["better"]
        assert writer.snapshot("good").num_items == 6


def test_rules_are_evaluated_before_they_are_in_force_and_outlive_a_restart(shop: Shop):
    with shop.writer() as writer:
        assert writer.put_definition(Rule, "rare", "stock < 3", "60s").num_items == 2
        assert writer.put_definition(Rule, "cheap", "price < 7").num_items == 2  # in place of that of the file
        before = state(writer)
        for where in ("no_such > 1", "price", "stock < 3; DROP TABLE items", ""):
            with pytest.raises(RuleError):
                writer.put_definition(Rule, "rare", where)
        with pytest.raises(RuleError, match="a rule's name"):
            writer.put_definition(Rule, "../x", "true")
        assert state(writer) == before
    with shop.writer() as writer:
        assert state(writer) == before
        assert writer.status("rare").refresh == 60.0
        writer.delete_definition(Rule, "rare")
        writer.delete_definition(Rule, "cheap")
        assert writer.status("cheap").num_items == 4  # the file's again
        with pytest.raises(ConflictError, match=r"in rules\.toml"):
            writer.delete_definition(Rule, "cheap")
        with pytest.raises(UnknownRuleError, match="there is no rule 'rare'"):
            writer.delete_definition(Rule, "rare")
    with shop.writer() as writer:
        assert sorted(state(writer)["rules"]) == ["cheap", "tea"]


def test_boosts_are_evaluated_before_they_are_in_force_and_outlive_a_restart(shop: Shop):
    with shop.writer() as writer:
        assert writer.put_definition(Boost, "margin", "price / 10", "60s").num_items > 0
        writer.put_definition(Rule, "rare", "stock < 3")
        with pytest.raises(RuleError, match="both a rule and a boost 'rare'"):
            writer.put_definition(Boost, "rare", "1")
        with pytest.raises(RuleError, match="boost 'margin' is BOOLEAN, not a number"):
            writer.put_definition(Boost, "margin", "price < 3")
    with shop.writer() as writer:
        assert writer.status("margin", Boost).refresh == 60.0
        assert set(writer.catalog.rules.boosts) == {"margin"}
        with pytest.raises(UnknownRuleError, match="there is no rule 'margin'"):
            writer.delete_definition(Rule, "margin")
        writer.delete_definition(Boost, "margin")
        with pytest.raises(UnknownBoostError, match="there is no boost 'margin'; the boosts of this catalog are: none"):
            writer.delete_definition(Boost, "margin")
    with shop.writer() as writer:
        assert not writer.catalog.rules.boosts


@pytest.mark.parametrize("before", [None, "price / 10"])
def test_a_boost_that_cannot_be_written_is_not_in_force(shop: Shop, monkeypatch: pytest.MonkeyPatch, before: str | None):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with shop.writer() as writer:
        if before is not None:
            writer.put_definition(Boost, "margin", before, "60s")
        monkeypatch.setattr(writer._live, "save_rules", full)
        with pytest.raises(LogError, match="cannot write boost 'margin': No space left"):
            writer.put_definition(Boost, "margin", "price")
        found = writer.catalog.rules.definitions.get("margin")
        assert found == (None if before is None else Boost(name="margin", expression=before, refresh=60.0))


def test_new_texts_reach_the_item_memory_also_after_a_restart(shop: Shop):
    with shop.writer() as writer:
        writer.put(rows({"item_id": "new", "title": "blue boot"}))
        found = shop.memory.search(["i2"], num_items=6)
        assert "new" in found.item_ids
        writer.patch(rows({"item_id": "new", "title": "black tea"}))
        assert shop.memory.search(["i5"], num_items=1).item_ids == ("new",)
    fitted = ItemMemory.fit([f"i{n}" for n in range(6)], np.array([0, 2]), np.array([0, 1]), texts=TITLES)
    with shop.writer(memory=fitted):
        assert fitted.search(["i5"], num_items=1).item_ids == ("new",)


def test_the_item_memory_has_a_new_text_before_a_request_can_meet_the_item(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    known: list[bool] = []
    commit = CommitStore.commit

    def checked(store: CommitStore, write_set: WriteSet) -> int:
        known.append(bool(shop.memory.rows_of(["new"])[0] >= 0))
        return commit(store, write_set)

    monkeypatch.setattr(CommitStore, "commit", checked)
    with shop.writer() as writer:
        writer.put(rows({"item_id": "new", "title": "blue boot"}))
        assert known == [True]
        with pytest.raises(BatchError):
            writer.put(rows({"item_id": "other", "title": "blue boot", "codes": [99, 99]}))
        assert shop.memory.rows_of(["other"])[0] < 0


def test_batches_have_bounds():
    for attempt, message in (
        (lambda: Lines.of_json_lines(b"\n\n"), "no line"),
        (lambda: Lines.of_json_lines(b'{"item_id": 1}\n' * 10_001), "up to 10,000 lines"),
        (lambda: Lines.of_json_lines(b'{"item_id": 1, "codes": [' + b"1," * 1_000_000 + b"1]}"), "up to 1,000,000 values"),
        (lambda: Lines.of_json(b"[" * 100_000), "cannot be read as JSON"),
    ):
        with pytest.raises(DataError, match=message):
            attempt()
    assert Lines.of_json(b'{"item_id": 3}').items[0].item_id == 3
    assert len(Lines.of_json(b'[{"item_id": 3}, {"item_id": 4}]').items) == 2


def test_many_sets_of_columns_in_one_patch_are_refused(shop: Shop):
    with shop.writer() as writer, pytest.MonkeyPatch.context() as patch:
        patch.setattr("leafbeam.ingest.changes.MAX_GROUPS", 2)
        assert writer.patch(rows({"item_id": "i0", "price": 1}, {"item_id": "i1", "stock": 1})).updated == 2
        with pytest.raises(ArgumentError, match="3 different sets of columns"):
            writer.patch(rows({"item_id": "i0", "price": 1}, {"item_id": "i1", "stock": 1}, {"item_id": "i2", "title": "t"}))


def test_a_damaged_file_of_the_directory_is_named(shop: Shop):
    with shop.writer() as writer:
        writer.put_definition(Rule, "rare", "stock < 3")
        writer.put(rows({"item_id": "new", "codes": [0, 3]}))
    (shop.folder / "live" / "rules.json").write_text(json.dumps({"rules": [1]}))
    with pytest.raises(LogError, match=r"rules\.json cannot be read"), shop.writer():
        pass
    (shop.folder / "live" / "origin.json").write_text("[" * 100_000)
    with pytest.raises(LogError, match=r"origin\.json cannot be read"), shop.writer():
        pass
