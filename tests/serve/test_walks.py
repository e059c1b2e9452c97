"""The three walks in docs/explanation/architecture.md: the files that a step, a request and a change really run, recorded."""

import re
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from starlette.testclient import TestClient

import leafbeam
from leafbeam.index import Trie
from leafbeam.ops import backend
from leafbeam.ops.constrain import Beams
from leafbeam.serve import create_app
from tests.serve.running import opened

PACKAGE = Path(leafbeam.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs/explanation/architecture.md").read_text(encoding="utf-8")


class Recorder:
    """Notes the package's files of which a function is called, in any thread, while `is_on`."""

    def __init__(self) -> None:
        self.is_on, self.files = False, dict[str, None]()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.is_on and event == "call" and (path := Path(frame.f_code.co_filename)).is_relative_to(PACKAGE):
            self.files[path.relative_to(PACKAGE.parent).as_posix()] = None

    @contextmanager
    def watching(self) -> Generator[None]:
        """Watch this thread, and the threads that start from now on."""
        before = sys.getprofile()
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)  # type: ignore[arg-type]


def check(walk: str, files: dict[str, None], compiled: Sequence[str] = ()) -> None:
    """The page names only files that the walk runs, and says how many it runs at most. compiled: run, but not seen."""
    part = PAGE.split(f"<!-- walk {walk} -->")[1].split(f"<!-- end walk {walk} -->")[0]
    named = re.findall(r"^\d+\. `(leafbeam/[\w/]+\.py)`", part, re.MULTILINE)
    assert [file for file in named if file not in files and Path(file).name not in compiled] == []
    most = re.search(rf"<!-- files of a {walk} -->.*?runs? code of (\d+) files", PAGE, re.DOTALL)
    assert most is not None
    assert len(files) <= int(most[1]), f"a {walk} runs code of {len(files)} files: {', '.join(files)}"


def test_the_walk_of_codes_names_files_that_a_build_and_a_step_run() -> None:
    recorder, codes_NL = Recorder(), np.random.default_rng(0).integers(0, 8, (100, 2))
    ranges_SBK, logits_BKV = np.zeros((1, 1, 1), np.int64), np.zeros((1, 1, 8), np.float32)
    root = Beams.start(ranges_SBK, ranges_SBK + Trie.build(codes_NL, (8, 8)).num_leaves, np.zeros((1, 1), np.float32))

    def build_and_step() -> None:
        trie = Trie.build(codes_NL, (8, 8))
        cpu = backend.load("cpu")[1]
        arrays = cpu.bind(trie)
        filters = cpu.bind_filters(arrays, [trie.all_items])
        beams = cpu.step(arrays, 0, root, logits_BKV, filters, num_beams=4, scoring="full")
        assert beams.num_valid.tolist() == [4]

    build_and_step()  # compiles
    with recorder.watching():
        recorder.is_on = True
        build_and_step()
        recorder.is_on = False
    check("codes", recorder.files, compiled=("kernels.py", "children.py"))


def test_the_walk_of_a_request_names_files_that_one_runs(first_shop: Any) -> None:
    recorder, engine, body = Recorder(), first_shop.engine(), {"num_items": 3, "rules": ["in_stock"]}
    with recorder.watching(), TestClient(create_app(engine)) as client:
        client.post("/v1/recommend", json=body)  # what is made once is there after this
        recorder.is_on = True
        assert client.post("/v1/recommend", json=body).status_code == 200
        recorder.is_on = False
    check("request", recorder.files)


def test_the_walk_of_a_change_names_files_that_one_runs(shop: Any) -> None:
    recorder = Recorder()
    with (
        recorder.watching(),
        opened(shop) as (engine, writer),
        TestClient(create_app(engine, writer=writer), base_url="http://127.0.0.1") as client,
    ):
        for item_id in (5000, 5001, 5002):  # the first makes the files, the second compiles
            recorder.is_on = item_id == 5002
            answer = client.put("/v1/items", json={"item_id": item_id, "codes": [1, 2], "title": "new", "price": 3, "stock": 1})
            assert answer.json()["inserted"] == 1
        recorder.is_on = False
    check("change", recorder.files)
