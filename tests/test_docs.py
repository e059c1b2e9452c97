"""The examples of the documents run, and print what is printed there."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run(document: str) -> int:
    """Run a document's Python from top to bottom; a block without a language behind it is what it prints (... is anything)."""
    blocks = _BLOCK.findall((DOCS / document).read_text(encoding="utf-8"))
    there: dict[str, object] = {}
    compared = 0
    for number, (language, code) in enumerate(blocks):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{document}, block {number}", "exec"), there)
        if number + 1 < len(blocks) and blocks[number + 1][0] == "":
            expected = ".*".join(re.escape(part) for part in blocks[number + 1][1].split("..."))
            assert re.fullmatch(expected, printed.getvalue(), re.DOTALL), f"{document}, block {number}:\n{printed.getvalue()}"
            compared += 1
    if "catalog" in there:
        there["catalog"].close()  # type: ignore[attr-defined]
    return compared


@pytest.mark.parametrize(("document", "least"), [("constraints.md", 6), ("jax.md", 4)])
def test_the_examples_of_a_document_print_what_it_says(document: str, least: int) -> None:
    assert run(document) >= least
