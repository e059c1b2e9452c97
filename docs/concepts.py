"""Writes the table of ideas into docs/explanation/architecture.md, each counted in the code: `python docs/concepts.py`."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/explanation/architecture.md"
_PART = re.compile(r"(<!-- ideas -->\n).*?(<!-- end ideas -->)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Idea:
    """An idea, the number of its places before they were folded, the number wanted, and how its places are found.

    A place is a file of the package whose path fits `path` and in which `pattern` is found, or with `classes` each match.
    """

    name: str
    before: int
    wanted: int
    pattern: str
    path: str = ""
    classes: bool = False

    def places(self) -> list[str]:
        """Return the files, and of `classes` their names, sorted."""
        found: list[str] = []
        for path in sorted((ROOT / "leafbeam").rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            matches = re.findall(self.pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
            if matches and re.search(self.path, file):
                found += [f"{file}: {name}" for name in matches] if self.classes else [file]
        return found


IDEAS = (
    Idea(
        name="constrained step for tries",
        before=6,
        wanted=5,
        pattern=r"^def (step|launch|extend|run)\(",
        path=r"ops/constrain/(\w+/step|reference)\.py",
    ),
    Idea(
        name="constrained step for automata",
        before=4,
        wanted=3,
        pattern=r"^def (step|launch|extend_ragged)\(",
        path=r"ops/constrain/\w+/(automaton|ragged)\.py",
    ),
    Idea(name="session of a model", before=3, wanted=2, pattern=r"^class \w*Session\b", path="/model/"),
    Idea(name="runner of a model", before=5, wanted=3, pattern=r"^class (CpuRunner|TorchRunner|StaticModel)\b", path="/model/"),
    Idea(
        name="layout of keys and values",
        before=5,
        wanted=2,
        pattern=r"^class (CodeCache|TextCache)\b",
        path="/model/",
        classes=True,
    ),
    Idea(name="choice of a product on a CPU", before=7, wanted=3, pattern=r"\bis_faster\(", path="/(model|engine|text)/"),
    Idea(
        name="what is measured while serving, or at load",
        before=7,
        wanted=2,
        pattern=r"^class (LatencyModel|SearchWidths|Tuning)\b",
    ),
    Idea(name="host type of filters", before=3, wanted=1, pattern=r"^class \w*Filter\b"),
    Idea(name="parser of an id", before=5, wanted=1, pattern=r"^def \w*parse_id\("),
    Idea(name="reader of CSV", before=4, wanted=1, pattern=r"\b(pacsv\.\w+|csv\.reader|read_csv_auto)\("),
    Idea(name="opener of Parquet", before=9, wanted=1, pattern=r"pq\.ParquetFile\("),
    Idea(name="atomic write", before=4, wanted=1, pattern=r"\b(?:replace|rename)\((?:part,|.*\.part\")"),
    Idea(name="error to HTTP response", before=7, wanted=1, pattern=r"^def \w*error_response\(", path="/serve/"),
    Idea(name="facts of a route", before=7, wanted=1, pattern=r"^OPERATIONS\b", path="/serve/"),
    Idea(
        name="fields of a request", before=6, wanted=2, pattern=r"^ +keep_history: (?!.*\) ->)", path="/(engine|serve|client)/"
    ),
    Idea(name="where files are", before=6, wanted=2, pattern=r"^class (RunDirectory|CatalogFiles|\w+Paths)\b"),
    Idea(name="HTTP client", before=3, wanted=1, pattern=r"^class _?\w*Transport\b"),
    Idea(name="settings of a server", before=4, wanted=1, pattern=r"^class ServerConfig\b"),
)


def written(page: str) -> str:
    """Return the page with the ideas as the code has them."""
    rows = [f"| {idea.name} | {idea.before} | {len(idea.places())} | {idea.wanted} |" for idea in IDEAS]
    table = "\n".join(["| idea | before | now | wanted |", "| --- | ---: | ---: | ---: |", *rows])
    return _PART.sub(lambda part: f"{part[1]}\n{table}\n{part[2]}", page)


if __name__ == "__main__":
    for idea in IDEAS:
        print(f"{idea.name}: {', '.join(idea.places())}")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
