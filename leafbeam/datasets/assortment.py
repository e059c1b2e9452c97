"""The synthetic shop's assortment: departments with brands, categories with the words of titles."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files

__all__ = ["Category", "Department", "read_assortment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """A category: the words of its titles, typical prices of its nouns, and the categories that users visit next.

    sizes: ascending in size and price. next_categories: other categories, the most frequent next one first.
    """

    name: str
    nouns: tuple[str, ...]
    prices: tuple[float, ...]
    lines: tuple[str, ...]
    finishes: tuple[str, ...]
    sizes: tuple[str, ...]
    next_categories: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Department:
    """Categories that share their brands, the best-known brand first."""

    name: str
    brands: tuple[str, ...]
    categories: tuple[Category, ...]


def read_assortment() -> tuple[Department, ...]:
    """The departments of the package's `assortment.toml`."""
    text = files("leafbeam.datasets").joinpath("assortment.toml").read_text(encoding="utf-8")
    return tuple(
        Department(
            name=department["name"],
            brands=tuple(department["brands"]),
            categories=tuple(
                Category(
                    name=category["name"],
                    nouns=tuple(category["nouns"]),
                    prices=tuple(float(price) for price in category["nouns"].values()),
                    lines=tuple(category["lines"]),
                    finishes=tuple(category["finishes"]),
                    sizes=tuple(category["sizes"]),
                    next_categories=tuple(category["next_categories"]),
                )
                for category in department["categories"]
            ),
        )
        for department in tomllib.loads(text)["departments"]
    )
