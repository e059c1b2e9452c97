"""Ray Serve and Ray Data over a cluster that the test starts: two CPUs, a small object store."""

import asyncio
import dataclasses
import json
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from leafbeam.engine import CatalogFiles, Engine, Request, Settings
from leafbeam.errors import ArgumentError, DataError, IndexFileError, RequestError, UnavailableError, UnknownRuleError
from leafbeam.integrations.batch import PartitionResult, PartitionRunner
from tests.fixtures.ray_warnings import RAY_WARNINGS
from tests.integrations.batches import NUM_USERS, check_output, job_of, make_shop, make_users, model_of

pytest.importorskip("ray", reason="Ray is not installed: pip install 'leafbeam[ray]'", exc_type=ImportError)
pytestmark = [
    pytest.mark.slow,
    *RAY_WARNINGS,
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CatalogFiles:
    return make_shop(tmp_path_factory.mktemp("shop"))


def test_a_batch_job_on_ray_writes_what_one_process_writes(cluster: Any, files: CatalogFiles, tmp_path: Path):
    from leafbeam.integrations.ray_batch import recommend_users_on_ray

    histories = make_users(tmp_path / "users.parquet")
    job = job_of(files, tmp_path)
    for partition in job.plan().pending[2:5]:  # as a job leaves it that was killed
        PartitionRunner(job).run(partition)
    out = Path(job.out)
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    seen: list[int] = []

    def note(_: PartitionResult, finished: int, total: int) -> None:
        seen.append(finished)

    done = recommend_users_on_ray(job, workers=2, cpus_per_worker=0.5, progress=note)
    assert [one.number for one in done] == [0, 1, 5, 6, 7]
    assert sum(one.users for one in done) == NUM_USERS - 6 - 6 - 6 + 2
    assert seen == [4, 5, 6, 7, 8]
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    check_output(job, histories)
    assert recommend_users_on_ray(job) == []

    other = dataclasses.replace(job, request=dataclasses.replace(job.request, num_items=6))
    with pytest.raises(DataError, match="different request"):
        recommend_users_on_ray(other)
    unknown = dataclasses.replace(job, out=str(tmp_path / "unknown"), request=Request(rules=("stale",)))
    for error, call, says in (
        (UnknownRuleError, lambda: recommend_users_on_ray(unknown, workers=1, cpus_per_worker=0.5), "stale"),
        (
            ArgumentError,
            lambda: recommend_users_on_ray(dataclasses.replace(unknown, out=str(tmp_path / "large")), cpus_per_worker=64),
            r"too few for one worker .*: expected CPUs: 64, GPUs: 0",
        ),
        (ArgumentError, lambda: recommend_users_on_ray(unknown, workers=0), "workers=0"),
    ):
        with pytest.raises(error, match=says):
            call()


OBJECTIVES: dict[str, Any] = {"num_items": 5, "boosts": {"late": 2.0}, "at_most": {"new": 3}, "at_least": {"fresh": 3}}


def check_lists(lists: list[list[Any]]) -> None:
    """Every list has three items of the rule "fresh", and with them as many of that group as may be."""
    assert {len(items) for items in lists} == {5}
    assert {sum(int(item[4:]) % 3 == 0 for item in items) for items in lists} == {3}


def test_a_batch_job_on_ray_takes_boosts_caps_and_quotas(cluster: Any, files: CatalogFiles, tmp_path: Path) -> None:
    from leafbeam.integrations.ray_batch import recommend_users_on_ray

    histories = make_users(tmp_path / "users.parquet")
    job = job_of(files, tmp_path, request=Request(**OBJECTIVES), partition_rows=20)
    recommend_users_on_ray(job, workers=2, cpus_per_worker=0.5)
    check_output(job, histories, rule=None)
    lists = pq.read_table(job.out).column("item_ids").to_pylist()
    check_lists(lists)
    plain = dataclasses.replace(job, out=str(tmp_path / "plain"), request=Request(num_items=5))
    recommend_users_on_ray(plain, workers=2, cpus_per_worker=0.5)
    assert pq.read_table(plain.out).column("item_ids").to_pylist() != lists


def ask(url: str, body: Any = None) -> tuple[int, Any, dict[str, str]]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read()), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read()), dict(error.headers)


def test_an_application_answers_rejects_and_rolls_a_catalog_out(cluster: Any, files: CatalogFiles, tmp_path: Path):
    from ray import serve

    from leafbeam.integrations.ray_serve import DeploymentConfig, application

    settings = Settings(num_beams=8, max_queue=1, max_batch=1, workers=1)
    config = DeploymentConfig(
        model=model_of(files), files=files, settings=settings, min_replicas=1, max_replicas=1, num_cpus=0.5, grace_s=5.0
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    handle = serve.run(application(config), name="shop", route_prefix="/shop")
    url = f"http://127.0.0.1:{port}/shop"
    engine = Engine.load(model_of(files), files, settings=Settings(num_beams=8))
    body = {"history": ["item001", "item002"], "num_items": 5, "rules": ["fresh"]}
    (alone,) = engine.recommend([Request(history=("item001", "item002"), num_items=5, rules=("fresh",))])

    status, answer, _ = ask(f"{url}/v1/recommend", body)
    assert status == 200
    assert answer["item_ids"] == list(alone.item_ids)
    assert handle.recommend.remote(body).result()["item_ids"] == list(alone.item_ids)
    assert ask(f"{url}/readyz")[1]["ready"]

    wished = {"history": ["item001", "item002"], **OBJECTIVES}
    (listed,) = engine.recommend([Request(history=("item001", "item002"), **OBJECTIVES)])
    for answer in (ask(f"{url}/v1/recommend", wished)[1], handle.recommend.remote(wished).result()):
        assert answer["item_ids"] == list(listed.item_ids)
        np.testing.assert_allclose(answer["boosts"], listed.boosts, atol=1e-5)
        np.testing.assert_allclose(answer["model_scores"], listed.model_scores, atol=1e-4)
        assert answer["exact"] is listed.exact
        check_lists([list(answer["item_ids"])])
    unmet = handle.recommend.remote(wished | {"at_most": {"new": 2}}).result()
    assert dict(unmet["unmet"]) == {"fresh": 1}
    assert ask(f"{url}/v1/recommend", wished | {"boosts": {"early": 1.0}})[0] == 422

    status, answer, _ = ask(f"{url}/v1/recommend", body | {"rules": ["stale"]})
    assert (status, answer["error"]["type"]) == (422, "UnknownRuleError")
    with pytest.raises(RequestError):
        handle.recommend.remote(body | {"num_items": 10_000}).result()
    with ThreadPoolExecutor(10) as pool:
        burst = list(pool.map(lambda _: ask(f"{url}/v1/recommend", body | {"num_beams": 60}), range(40)))
    assert {status for status, _, _ in burst} == {200, 429}
    refused = next((answer["error"], headers) for status, answer, headers in burst if status == 429)
    assert (refused[0]["type"], refused[0]["reason"]) == ("OverloadedError", "queue_full")
    assert int(refused[1]["retry-after"]) >= 1

    newer = make_shop(tmp_path / "newer", seed=9, items=70)
    versions: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        over = False

        def customer() -> None:
            while not over:
                status, answer, _ = ask(f"{url}/v1/recommend", body)
                assert status == 200, answer
                versions.append(answer["index_version"])

        buying = pool.submit(customer)
        try:
            serve.run(application(dataclasses.replace(config, files=newer)), name="shop", route_prefix="/shop")
            after = handle.status.remote().result()
        finally:
            over = True
        buying.result()
    new_version = Engine.load(model_of(files), newer).trie.version
    assert (after["index_version"], after["fault"]) == (new_version, None)
    assert versions[0] == engine.trie.version
    assert set(versions) <= {engine.trie.version, new_version}
    assert ask(f"{url}/v1/recommend", body)[1]["index_version"] == new_version
    serve.shutdown()


def test_a_replica_takes_new_files_while_it_answers(cluster: Any, files: CatalogFiles, tmp_path: Path):
    from leafbeam.integrations.ray_serve import Recommender

    newer = make_shop(tmp_path / "newer", seed=9, items=70)
    served, replaced, broken = (
        {"model": model_of(files), **dataclasses.asdict(catalog)}
        for catalog in (files, newer, dataclasses.replace(files, index=str(tmp_path / "nowhere.leafbeam")))
    )
    body = {"history": ["item001"], "num_items": 3}

    async def replica() -> list[str]:
        one = Recommender(Settings(), "cpu", 5.0)
        with pytest.raises(UnavailableError, match="no files yet"):
            await one.status()
        with pytest.raises(IndexFileError, match="nowhere"):
            await one.reconfigure(broken)
        await one.reconfigure(served)
        first = one._served
        assert first is not None
        over, versions = False, list[str]()

        async def customer() -> None:
            while not over:
                versions.append((await one.recommend(body))["index_version"])

        customers = [asyncio.create_task(customer()) for _ in range(3)]
        await asyncio.sleep(0.2)
        await one.reconfigure(replaced)
        await one.reconfigure(broken)
        await asyncio.sleep(0.2)
        over = True
        await asyncio.gather(*customers)
        status = await one.status()
        assert "nowhere.leafbeam" in status["fault"]
        assert versions[-1] == status["index_version"]
        await asyncio.gather(*one._retiring)
        assert not first.engine.is_running  # nobody is inside any more
        assert one._served is not None
        assert one._served.engine.model is first.engine.model  # the same weights
        await one.check_health()
        await one.reconfigure(served)
        assert (await one.status())["fault"] is None
        one._served.engine.stop()
        with pytest.raises(UnavailableError):
            await one.check_health()
        return versions

    versions = asyncio.run(replica())
    changed = next(place for place, version in enumerate(versions) if version != versions[0])
    assert changed > 0
    assert len(set(versions)) == 2
    assert len(set(versions[changed + 3 :])) == 1  # one answer of each customer may still have been on its way


def test_arguments_of_a_deployment(cluster: Any, files: CatalogFiles):
    from leafbeam.integrations.ray_serve import DeploymentConfig

    words = {
        "model": model_of(files),
        "index": files.index,
        "num_beams": "40",
        "slo_s": "0.2",
        "max_replicas": "4",
        "overlap": "false",
    }
    config = DeploymentConfig.of(words)
    assert (config.settings.num_beams, config.settings.slo_s, config.settings.overlap) == (40, 0.2, False)
    assert (config.min_replicas, config.max_replicas, config.files.index) == (1, 4, str(files.index))
    for change, message in (
        ({"num_beems": "4"}, "there is no argument 'num_beems'"),
        ({"num_beams": "many"}, "num_beams='many': expected int"),
        ({"min_replicas": 5}, "min_replicas=5 must be from 1 to"),
        ({"num_gpus": -1}, "at least 0"),
        ({"grace_s": 0}, "above 0"),
        ({"files": "x"}, "there is no argument 'files'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            DeploymentConfig.of(words | change)
    with pytest.raises(ArgumentError, match="index missing"):
        DeploymentConfig.of({"model": model_of(files)})
