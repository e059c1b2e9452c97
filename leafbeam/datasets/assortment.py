"""What the demo's shop sells: departments with their brands, categories with the words that titles are made of."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files

__all__ = ["Category", "Department", "read_assortment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """One shelf: the words of its titles, what a noun costs, and which shelves people go to from here.

    sizes: smallest first; a larger size costs more. then: other categories, the most usual next stop first.
    """

    name: str
    nouns: tuple[str, ...]
    prices: tuple[float, ...]
    lines: tuple[str, ...]
    finishes: tuple[str, ...]
    sizes: tuple[str, ...]
    then: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Department:
    """Shelves that share their brands, the best known brand first."""

    name: str
    brands: tuple[str, ...]
    categories: tuple[Category, ...]


def read_assortment() -> tuple[Department, ...]:
    """The departments of `assortment.toml`, which comes with the package."""
    text = files("leafbeam.datasets").joinpath("assortment.toml").read_text(encoding="utf-8")
    return tuple(
        Department(
            name=department["name"],
            brands=tuple(department["brands"]),
            categories=tuple(
                Category(
                    name=shelf["name"],
                    nouns=tuple(shelf["nouns"]),
                    prices=tuple(float(price) for price in shelf["nouns"].values()),
                    lines=tuple(shelf["lines"]),
                    finishes=tuple(shelf["finishes"]),
                    sizes=tuple(shelf["sizes"]),
                    then=tuple(shelf["then"]),
                )
                for shelf in department["categories"]
            ),
        )
        for department in tomllib.loads(text)["departments"]
    )
