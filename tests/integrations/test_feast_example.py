"""examples/feast: a user's history from a real online store of Feast, then items from a real server."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafbeam.client import Client
from leafbeam.engine import Engine
from leafbeam.index import Trie
from leafbeam.model import load_model
from tests.serve.conftest import first_shop  # noqa: F401
from tests.serve.running import thread

FOLDER = Path(__file__).parents[2] / "examples" / "feast"


@pytest.mark.filterwarnings("default")  # of feast and what it imports
def test_a_history_is_read_when_it_is_needed(first_shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    feast = pytest.importorskip("feast", reason="feast is not installed: it is no dependency of leafbeam")
    import pandas as pd

    for name in ("features.py", "feature_store.yaml"):
        shutil.copy(FOLDER / name, tmp_path / name)
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    from examples.feast import features
    from examples.feast import recommend as example

    store = feast.FeatureStore(str(tmp_path))
    store.apply([features.user, features.histories])
    now = pd.Timestamp.now(tz="UTC")
    rows = pd.DataFrame({"user_id": ["u"], "items": [["p3", "p5"]], "event_timestamp": [now]})
    store.push("histories_push", rows)
    assert example.history_of(store, "u") == ["p3", "p5"]
    assert example.history_of(store, "nobody") == []
    index = Trie.build(np.random.default_rng(0).integers(0, 8, (30, 2)), (8, 16), item_ids=[f"p{n}" for n in range(30)])
    with thread(Engine(load_model(first_shop.files[0]), index)) as server, Client(server.url) as client:
        expected = list(client.recommend(["p3", "p5"], num_items=5).item_ids)
        assert example.recommend(store, client, "u", num_items=5) == expected
        assert expected != list(client.recommend([], num_items=5).item_ids)
