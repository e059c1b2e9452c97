"""A14: no message puts a number before a plural noun where the number can be 1."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Words that end in s after a value and are not a number's noun: verbs, units and others.
_NOT_NOUNS = (
    "allows|as|begins|belongs|closes|covers|does|ends|exists|follows|gives|goes|has|holds|is|joins|keeps|lacks|leads|lies|looks|"
    "makes|matches|misses|mixes|ms|names|needs|occurs|opens|plus|points|puts|reaches|reads|requires|serves|sets|splits|takes|"
    "unrolls|uses|wants|was"
)
# Values before a plural that are not a number, or not 1.
_EXCEPTIONS = {
    "sorted(set(sizes))": "a list of lengths",
    "tokens.sizes": "a list of sizes",
    "sizes": "a list of sizes",
    "speedups": "a list of ratios",
    "counts": "numbers in words",
    "directory / _ADAPTER": "changes is a verb",
    "_DIGITS[kind.unit]": "0, 3, 6 or 9",
    "self.num_specials": "leaves is a verb",
}


def uncounted(source: str) -> list[tuple[int, str]]:
    """Return the line and the text of each value of an f-string that is followed directly by a plural noun.

    Constants in capitals are limits above 1, and numbers with decimals ("1.0 minutes") take the plural.
    """
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            noun = re.match(rf" (?:more |new )?(?!(?:{_NOT_NOUNS})\b)[A-Za-z-]+s\b", str(text.value))
            name, form = ast.unparse(value.value), "" if value.format_spec is None else ast.unparse(value.format_spec)
            is_number = value.conversion == -1 and "f" not in form.removeprefix("f") and "%" not in form
            is_right = name.startswith("counted(") or name.rpartition(".")[2].isupper() or name in _EXCEPTIONS
            if noun is not None and is_number and not is_right:
                found.append((value.lineno, f"{name}{noun[0]}"))
    return found


def test_every_number_before_a_noun_is_counted() -> None:
    files = sorted((ROOT / "leafbeam").rglob("*.py"))
    bad = [f"{file.relative_to(ROOT)}:{line}: {text}" for file in files for line, text in uncounted(file.read_text("utf-8"))]
    assert bad == [], "use leafbeam.errors.counted"


def test_every_exception_is_there() -> None:
    text = "".join(file.read_text("utf-8") for file in (ROOT / "leafbeam").rglob("*.py"))
    assert [name for name in _EXCEPTIONS if f"{{{name}}} " not in text] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('f"{n:,} items"', ["n items"]),
        ('f"at most {len(x)} rows, not {n} new columns"', ["len(x) rows", "n new columns"]),
        ('f"{n}" f" more rules"', ["n more rules"]),
        ("f\"{path} has {counted(n, 'item')}, {LIMIT:,} bytes at most, {s:.1f} minutes, {self.MAX} levels, {x!r} items\"", []),
    ],
)
def test_the_search_for_uncounted_nouns_sees_them(source: str, expected: list[str]) -> None:
    assert [text for _, text in uncounted(source)] == expected
