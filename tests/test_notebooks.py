"""The notebooks of examples/ run in a kernel of their own, and show tables."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

ROOT = Path(__file__).parent.parent
NOTEBOOKS = {"quickstart": 4, "rules_and_live_items": 4}  # how many tables each shows, at least
pytestmark = pytest.mark.slow


def test_every_notebook_is_tested() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.parametrize(("name", "tables"), NOTEBOOKS.items())
def test_a_notebook_runs_and_shows_tables(name: str, tables: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # what it shows is made anew by each reader
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("<table>" in output.get("data", {}).get("text/html", "") for output in outputs) >= tables
