"""The walk of a request in docs/explanation/architecture.md: the files that one really runs, recorded."""

import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.testclient import TestClient

import leafbeam
from leafbeam.serve import create_app

PACKAGE = Path(leafbeam.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs/explanation/architecture.md").read_text(encoding="utf-8")


class Recorder:
    """Notes the package's files of which a function is called, in any thread, while `is_on`."""

    def __init__(self) -> None:
        self.is_on, self.files = False, dict[str, None]()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.is_on and event == "call" and (path := Path(frame.f_code.co_filename)).is_relative_to(PACKAGE):
            self.files[path.relative_to(PACKAGE.parent).as_posix()] = None


def test_the_walk_of_a_request_names_files_that_one_runs(first_shop: Any) -> None:
    recorder, engine, body = Recorder(), first_shop.engine(), {"num_items": 3, "rules": ["in_stock"]}
    before = sys.getprofile()
    threading.setprofile(recorder)  # of the threads that the application starts
    sys.setprofile(recorder)
    try:
        with TestClient(create_app(engine)) as client:
            client.post("/v1/recommend", json=body)  # what is made once is there after this
            recorder.is_on = True
            assert client.post("/v1/recommend", json=body).status_code == 200
            recorder.is_on = False
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]
    walk = PAGE.split("<!-- walk request -->")[1].split("<!-- end walk request -->")[0]
    named = re.findall(r"^\d+\. `(leafbeam/[\w/]+\.py)`", walk, re.MULTILINE)
    assert [file for file in named if file not in recorder.files] == []
    most = re.search(r"runs code of (\d+) files", PAGE)
    assert most is not None
    assert len(recorder.files) <= int(most[1]), f"a request runs code of {len(recorder.files)} files"
