"""The synthetic shop's assortment: departments with brands, categories with the words of titles."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """A category: the words of its titles, and the categories that users visit next.

    `nouns` come with their typical prices. `sizes` ascend in size and price. `next_categories` has the most frequent one first.
    """

    name: str
    nouns: dict[str, float]
    lines: list[str]
    finishes: list[str]
    sizes: list[str]
    next_categories: list[str]

    @property
    def num_titles(self) -> int:
        """Return the number of distinct titles of one brand."""
        return len(self.nouns) * len(self.lines) * len(self.finishes) * len(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Department:
    """Categories that share their brands, the best-known brand first."""

    name: str
    brands: list[str]
    categories: list[Category]


def read_assortment() -> tuple[Department, ...]:
    """Read the departments of the package's `assortment.toml`."""
    text = files("leafbeam.datasets").joinpath("assortment.toml").read_text(encoding="utf-8")
    return tuple(
        Department(**values | {"categories": [Category(**category) for category in values["categories"]]})
        for values in tomllib.loads(text)["departments"]
    )
