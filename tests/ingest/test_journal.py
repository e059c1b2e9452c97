"""The log of requests is the log of the index too: each change is written once, and comes back whatever happens after."""

import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog, Rule
from leafbeam.errors import ItemIdError, LogError
from leafbeam.ingest import CatalogWriter
from leafbeam.live import LiveIndex, RequestKey, disk
from leafbeam.retrieve import ItemMemory, LiveMemory
from tests.ingest.shop import KEY, TITLES, Shop, counts, raising, rows, state

FIXTURE = Path(__file__).parent.parent / "fixtures" / "changes-v1"


def codes_of(writer: CatalogWriter) -> dict[str, list[int]]:
    return {item_id: sid for item_id, (sid, _) in state(writer)["items"].items()}


def codes_read(shop: Shop) -> dict[str, list[int]]:
    """The items that another process reads."""
    with LiveIndex.open(shop.folder / "live" / "index", read_only=True) as index:
        version = index.version()
        ids = sorted(version.all_items.item_ids().astype(str).tolist())
        return dict(zip(ids, version.codes_of(ids).tolist(), strict=True)) if ids else {}


def test_a_put_is_written_and_synced_in_the_log_of_requests_and_in_the_table_alone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.memory.save(shop.folder / "memory.leafbeam")
    synced: list[int] = []
    sync = disk.sync

    def noted(descriptor: int) -> None:
        synced.append(descriptor)
        sync(descriptor)

    def sizes() -> dict[str, int]:
        files = [path for path in shop.folder.rglob("*") if path.is_file() and not path.name.startswith("items.duckdb")]
        return {path.name: path.stat().st_size for path in files}

    with LiveMemory.open(shop.folder / "memory.leafbeam") as memory, shop.writer(memory=memory) as writer:
        writer.put(rows({"item_id": "first", "title": "blue boot"}))
        before = sizes()
        monkeypatch.setattr(disk, "sync", noted)
        writer.put(rows({"item_id": "new", "title": "red tea"}, {"item_id": "i0", "title": "blue tea", "codes": [3, 3]}))
        assert len(synced) == 1
        assert {name for name, size in sizes().items() if before[name] != size} == {"requests-0.log"}
        assert memory.memory.search(["new"], num_items=1).item_ids


@pytest.mark.slow
def test_changes_come_back_in_any_order_of_restarts_compactions_new_logs_and_rollbacks(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a dictionary; a reader sees the same at each moment."""
    for seed in range(4):
        dice = random.Random(seed)
        monkeypatch.setattr("leafbeam.ingest.request_log._MAX_BYTES", dice.choice([1, 700, 1 << 20]))
        folder = shop.folder / f"of-{seed}"
        folder.mkdir()
        for name in ("index.leafbeam", "items.duckdb"):
            shutil.copy(shop.folder / name, folder / name)
        own = Shop(folder=folder, encoder=shop.encoder, codes=shop.codes, memory=shop.memory)
        saved: dict[str, list[int]] | None = None
        with own.writer() as writer:
            expected = codes_of(writer)
        for _ in range(4):
            with own.writer() as writer:
                assert codes_of(writer) == expected
                for _ in range(dice.randint(1, 8)):
                    ids = dice.sample([f"i{n}" for n in range(12)], dice.randint(1, 4))
                    match dice.choice(["put", "put", "put", "delete", "patch", "compact", "snapshot", "rollback"]):
                        case "put":
                            new = {item_id: [dice.randrange(4), dice.randrange(4)] for item_id in ids}
                            writer.put(rows(*({"item_id": item_id, "codes": codes} for item_id, codes in new.items())))
                            expected |= new
                        case "delete":
                            writer.delete(rows(*({"item_id": item_id} for item_id in ids)), missing_ok=True)
                            expected = {item_id: codes for item_id, codes in expected.items() if item_id not in ids}
                        case "patch" if expected:
                            writer.patch(rows({"item_id": min(expected), "price": dice.randrange(9)}))
                        case "compact":
                            writer.catalog.compact(wait=dice.random() < 0.5)
                        case "snapshot" if saved is None:
                            writer.snapshot("s")
                            saved = dict(expected)
                        case "rollback" if saved is not None:
                            writer.rollback("s")
                            expected = dict(saved)
                        case _:
                            continue
                    if (folder / "live" / "index" / "manifest.json").exists():
                        assert codes_read(own) == expected == codes_of(writer), seed


@pytest.mark.parametrize("compacts", [False, True])
def test_a_change_whose_end_a_power_cut_took_is_made_again(shop: Shop, compacts: bool) -> None:
    with shop.writer() as writer:
        writer.put(rows({"item_id": "first", "codes": [1, 1]}))
        if compacts:
            writer.catalog.compact(wait=True)
        writer.put(rows({"item_id": "new", "codes": [1, 2], "price": 3}), KEY)
        before = state(writer)
    log = shop.folder / "live" / "requests-0.log"
    log.write_bytes(log.read_bytes().removesuffix(b'{"applied":true}')[:-24])  # what is not synced
    assert codes_read(shop)["new"] == [1, 2]  # was acknowledged
    with shop.writer() as writer:
        assert state(writer) == before
        assert writer.put(rows({"item_id": "new", "codes": [1, 2], "price": 3}), KEY) == counts(inserted=1, number=2)
        assert writer.put(rows({"item_id": "next", "codes": [1, 3]})).number == 3
    with shop.writer() as writer:
        assert codes_of(writer).keys() == before["items"].keys() | {"next"}


def test_a_directory_of_the_first_format_is_read_and_changed(shop: Shop) -> None:
    """Its index has a log of its own; its last change is decided and in the table, but not in the index."""
    shutil.copy(FIXTURE / "index.leafbeam", shop.folder)
    shutil.copytree(FIXTURE / "live", shop.folder / "live")
    ids = ["i0", "i1", "i3", "i4", "i5", "new", "late"]
    table = pa.table(
        {"item_id": ids, "title": [*TITLES[:2], *TITLES[3:], "blue tea", ""], "price": [9.0] * 7, "stock": [1] * 7}
    )
    Catalog.create(shop.folder / "items.duckdb", table, overwrite=True)
    assert codes_read(shop).keys() == set(ids) - {"late"}
    with shop.writer() as writer:
        expected = codes_of(writer)
        assert (expected.keys(), expected["new"], expected["i0"], expected["late"]) == (set(ids), [1, 1], [1, 2], [1, 3])
        assert writer.put(rows({"item_id": "new", "codes": [1, 1]}), KEY) == counts(inserted=1, number=1)
        late = RequestKey(key="two", digest="d2")
        assert writer.put(rows({"item_id": "late", "codes": [1, 3]}), late) == counts(inserted=1, number=3)
        assert writer.put(rows({"item_id": "next", "codes": [0, 0]})).number == 4
        expected = codes_of(writer)
    assert codes_read(shop) == expected
    for compacts in (False, True):
        with shop.writer() as writer:
            assert codes_of(writer) == expected
            if compacts:
                writer.catalog.compact(wait=True)
    assert codes_read(shop) == expected


@pytest.mark.parametrize("max_bytes", [1, pytest.param(16 << 20, marks=pytest.mark.slow)])
def test_texts_that_were_replaced_reach_an_item_memory_of_before(
    shop: Shop, max_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leafbeam.ingest.request_log._MAX_BYTES", max_bytes)
    with shop.writer() as writer:
        writer.put(rows({"item_id": "i1", "title": "black tea"}))
        writer.patch(rows({"item_id": "i2", "title": "green tea"}, {"item_id": "i4", "price": 1}))
        for number in range(20):
            writer.patch(rows({"item_id": "i3", "price": number}))
    for _ in range(2):
        fitted = ItemMemory.fit([f"i{n}" for n in range(6)], np.array([0, 2]), np.array([0, 1]), texts=TITLES)
        with shop.writer(memory=fitted):
            expected = shop.memory.texts.take(shop.memory.rows_of(["i1", "i2", "i4"]))
            found = fitted.texts.take(fitted.rows_of(["i1", "i2", "i4"]))
            assert found.terms_C.tolist() == expected.terms_C.tolist()
            assert found.indptr_N1.tolist() == expected.indptr_N1.tolist()


def test_the_index_alone_is_not_opened_for_writing(shop: Shop) -> None:
    with shop.writer() as writer:
        writer.put(rows({"item_id": "new", "codes": [1, 1]}))
    with pytest.raises(LogError, match="open it with read_only=True"):
        LiveIndex.open(shop.folder / "live" / "index")


def test_a_log_without_a_change_is_refused(shop: Shop) -> None:
    with shop.writer() as writer:
        writer.put(rows({"item_id": "first", "codes": [1, 1]}))
        writer.put(rows({"item_id": "new", "codes": [1, 2]}))
        del writer._live.persist()._commits.made[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("leafbeam.ingest.request_log._MAX_BYTES", 1)
            patch.setattr(writer._live.persist(), "_max_bytes", 1)
            writer.patch(rows({"item_id": "i0", "price": 1}))
    with pytest.raises(LogError, match=r"changes of .* are missing in the log beside it"):
        codes_read(shop)
    with pytest.raises(LogError, match=r"changes of .* are missing in the log beside it"), shop.writer():
        pass


@pytest.mark.parametrize("commits", [[[1]], [[1, "no base64"]], [["one", ""]], 3, [[1, "AAAA"]]])
def test_a_damaged_commit_is_named(shop: Shop, commits: Any) -> None:
    with shop.writer() as writer:
        writer.put_definition(Rule, "rare", "stock < 3")
        log = writer._live.persist()
        log._log.append(msgspec.json.encode({"commits": commits}))
    for read in (lambda: codes_read(shop), lambda: shop.writer().__enter__()):
        with pytest.raises(LogError, match=r"cannot be read .*restore the directory from a copy"):
            read()


def test_a_direct_change_of_the_index_is_durable_too(shop: Shop) -> None:
    with shop.writer() as writer:
        writer.put(rows({"item_id": "first", "codes": [1, 1]}))
        writer.catalog.insert([[2, 2]], ["direct"], [{"price": 3.0}])
        with pytest.MonkeyPatch.context() as patch, pytest.raises(LogError):  # noqa: PT012
            patch.setattr(disk, "write", raising(OSError(28, "No space left on device")))
            writer.catalog.insert([[2, 3]], ["lost"])
        with pytest.MonkeyPatch.context() as patch, pytest.raises(LogError):  # noqa: PT012
            patch.setattr("leafbeam.live.commit_store.CommitStore.commit", raising(LogError("the disk is gone")))
            writer.put(rows({"item_id": "late", "codes": [1, 2]}))
        writer.catalog.insert([[2, 1]], ["before late"])
        assert codes_read(shop).keys() >= {"direct", "before late"}
        writer.put(rows({"item_id": "next", "codes": [1, 3]}))
        expected = codes_of(writer)
        assert expected.keys() >= {"direct", "before late", "late", "next"}
        assert "lost" not in expected
    for _ in range(2):
        with shop.writer() as writer:
            assert codes_of(writer) == expected == codes_read(shop)


@pytest.mark.parametrize("name", ["leafbeam.live.disk.save", "leafbeam.live.disk.rename", "leafbeam.live.disk.create"])
def test_a_first_change_on_a_full_disk_is_made_once_there_is_room(shop: Shop, name: str) -> None:
    with shop.writer() as writer:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(LogError):  # noqa: PT012
            patch.setattr(name, raising(OSError(28, "No space left on device")))
            writer.put(rows({"item_id": "first", "codes": [1, 1]}))
        assert "first" not in codes_of(writer)
        writer.put(rows({"item_id": "first", "codes": [1, 2]}))
    with shop.writer() as writer:
        assert codes_of(writer)["first"] == [1, 2] == codes_read(shop)["first"]


def test_a_change_that_is_given_up_after_the_index_took_it_leaves_no_gap(shop: Shop) -> None:
    with shop.writer() as writer:
        writer.put(rows({"item_id": "first", "codes": [1, 1]}))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ItemIdError):  # noqa: PT012
            patch.setattr("leafbeam.catalog.active_rules.ActiveRules.advance", raising(ItemIdError("for ever")))
            writer.put(rows({"item_id": "half", "codes": [1, 2]}))
        writer.put(rows({"item_id": "next", "codes": [1, 3]}))
        expected = codes_of(writer)
    assert codes_read(shop) == expected
    with shop.writer() as writer:
        assert codes_of(writer) == expected
