"""What a compiled schema does not say: keywords that were ignored, and parts that were bounded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from leafbeam.automata.json_references import below
from leafbeam.automata.json_scope import Scope
from leafbeam.errors import AutomatonError, counted, short_repr


@dataclass(frozen=True, kw_only=True)
class SchemaNote:
    """A part of a schema that the compiled language does not hold to in full.

    Args:
        treatment: "ignored" if the keyword restricts nothing, as JSON Schema has it for keywords that it does not define;
            "bounded" if texts are not written that the schema allows.
        keyword: The keyword.
        pointer: The JSON pointer of the schema that has it.
        depth: For references that lead back to themselves, how often they are followed; for values that the schema does not
            describe, how deeply lists and objects nest in them.
    """

    treatment: Literal["ignored", "bounded"]
    keyword: str
    pointer: str
    depth: int | None = None

    def as_json(self) -> dict[str, str | int]:
        """Return the note as a JSON object; without a depth where there is none."""
        depth = {} if self.depth is None else {"depth": self.depth}
        return {"treatment": self.treatment, "keyword": self.keyword, "pointer": self.pointer, **depth}

    @classmethod
    def from_json(cls, value: object) -> "SchemaNote":
        """Read what `as_json` returned.

        Raises:
            ValueError: If the value is anything else.
        """
        names = {"treatment", "keyword", "pointer"}
        if not isinstance(value, Mapping) or not names <= set(value) <= {*names, "depth"}:
            raise ValueError(f"a note is {short_repr(value)}")
        kinds = {"treatment": str, "keyword": str, "pointer": str, "depth": int}
        if value["treatment"] not in ("ignored", "bounded") or any(
            type(part) is not kinds[name] for name, part in value.items()
        ):
            raise ValueError(f"a note is {short_repr(value)}")
        return cls(**value)


@dataclass(frozen=True, kw_only=True)
class Notes:
    """The notes of one compilation.

    Args:
        strict: Whether what would be noted is refused.
        kept: The notes, each once, in the order in which they came.
    """

    strict: bool
    kept: dict[SchemaNote, None] = field(default_factory=dict[SchemaNote, None])

    def ignored(self, keyword: str, scope: Scope, why: str) -> None:
        """Note a keyword that restricts nothing. Raises AutomatonError if notes are refused."""
        if self.strict:
            pointer = below(scope.path, keyword)
            raise AutomatonError(f"{scope.path} has {keyword}, {why}", pointer=pointer)
        self.kept[SchemaNote(treatment="ignored", keyword=keyword, pointer=scope.path)] = None

    def bounded(self, keyword: str, scope: Scope, depth: int) -> None:
        """Note a reference that is followed only so often. Raises AutomatonError if notes are refused."""
        if self.strict:
            raise scope.error(
                f" leads back to itself: {short_repr(keyword)} would be followed {counted(depth, 'time')} only", keyword
            )
        self.kept[SchemaNote(treatment="bounded", keyword=keyword, pointer=scope.path, depth=depth)] = None

    @property
    def has_bounded_reference(self) -> bool:
        return any(note.keyword == "$ref" for note in self.kept)

    def undescribed(self, scope: Scope, depth: int) -> None:
        """Note that values may be any to a depth."""
        self.kept[SchemaNote(treatment="bounded", keyword="", pointer=scope.path, depth=depth)] = None
