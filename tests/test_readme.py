"""The README's example gives the output that the README shows."""

import contextlib
import io
import re

import leafbeam
from leafbeam import decode, errors, index
from tests.fixtures.documents import README


def test_the_ten_line_example_prints_what_the_readme_says() -> None:
    code, output = re.findall(r"```(?:python)?\n(.*?)```", README.split("## Ten lines")[1], re.DOTALL)[:2]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == output


def test_the_public_surface_is_what_all_says() -> None:
    for module in (leafbeam, decode, errors, index):
        assert all(hasattr(module, name) for name in module.__all__), module.__name__
    search = {"BeamSearch", "Filter", "LeafbeamError", "Sampler", "SearchResult", "Trie"}
    assert set(leafbeam.__all__) == search | {"AsyncClient", "Client", "generate"}
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert classes == set(errors.__all__)
    assert all(name in (errors.__doc__ or "") for name in classes)
