"""`leafbeam items follow`: another system's changes reach a run's server by command."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.feeds.broker import FAST, Broker, created, deleted
from tests.fixtures.items_run import IDS, call, ids_of, served
from tests.fixtures.lakes import DeltaFiles, IcebergFiles

TEA = {"sku": "new", "title": "old tea", "price": 2.5, "supplier": "x"}
PLACE = ("--item-id", "sku", "--columns", "title,price", "--once")


def test_a_topic_of_kafka_is_followed(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    config = tmp_path / "kafka.conf"
    config.write_text("# as of librdkafka\n" + "".join(f"{name} = {value}\n" for name, value in FAST.items()))
    with Broker() as broker, served(run, monkeypatch) as url:
        topic = broker.new_topic()
        words = ("follow", "kafka", topic, "--servers", broker.address, "--group", "g", "--url", url, *PLACE)
        words = (*words, "--config", str(config), "--set", "client.id=test")
        broker.send(topic, created(TEA), created(TEA | {"sku": 7}), deleted({"sku": "i0"}), b"nonsense")
        bad = call(*words)
        assert (bad.exit_code, "partition 0, offset 3: its value cannot be read as JSON" in bad.stderr) == (2, True), bad.output
        done = call(*words, "--skip-bad")
        assert "2 items added, 0 replaced, 1 removed, 1 bad change skipped" in done.stdout, done.output
        again = call(*words)
        assert "0 items added, 0 replaced, 0 removed" in again.stdout, again.output
        wrong = call(*words, "--set", "nonsense")
        assert (wrong.exit_code, "expected a property as NAME=VALUE" in wrong.stderr) == (2, True)
    assert ids_of(run) == {*IDS, "new", "7"} - {"i0"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_is_followed(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    files = (DeltaFiles if kind == "delta" else IcebergFiles)(tmp_path)
    files.write(pa.Table.from_pylist([TEA, TEA | {"sku": "newer"}]))
    words = ["follow", kind, *PLACE, "--position", str(tmp_path / "position.json")]
    if isinstance(files, DeltaFiles):
        words.append(files.uri)
    else:
        words += ["shop.items", "--catalog", "test"]
        words += [word for name, value in files.properties.items() for word in ("--set", f"{name}={value}")]
    with served(run, monkeypatch) as url:
        assert "2 items added" in call(*words, "--url", url).stdout
        files.write(pa.Table.from_pylist([TEA | {"price": 1.0}]))
        assert "0 items added, 1 replaced, 1 removed" in call(*words, "--url", url).stdout
    assert ids_of(run) == {*IDS, "new"}


def test_a_publication_of_postgresql_is_followed(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    from tests.feeds.database import PublishedItems, database

    with database() as uri, served(run, monkeypatch) as url:
        table = PublishedItems(uri=uri, columns="sku text PRIMARY KEY, title text, price float8, supplier text", key="sku")
        words = ("follow", "postgres", table.name, "--slot", "shop", "--position", str(tmp_path / "position.json"))
        words = (*words, *PLACE, "--url", url, "--database", uri)
        table.put(TEA, TEA | {"sku": "newer"})
        assert "2 items added" in call(*words).stdout
        table.put(TEA | {"price": 1.0})
        table.delete("newer", "i0")
        again = call(*words)
        assert "0 items added, 1 replaced, 1 removed" in again.stdout, again.output
        wrong = call(*words, "--set", "sslmod=require")
        assert (wrong.exit_code, "libpq does not take these properties" in wrong.stderr) == (2, True), wrong.output
    assert ids_of(run) == {*IDS, "new"}


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    DeltaFiles(tmp_path).write(pa.Table.from_pylist([TEA]))
    words = ("follow", "delta", str(tmp_path / "items"), "--position", str(tmp_path / "p.json"), *PLACE)
    result = call(*words, "--url", "http://127.0.0.1:9")
    assert (result.exit_code, "was not reached at http://" in result.stderr) == (2, True), result.output
