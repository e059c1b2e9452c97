"""Checks the prose of the documents: `python tests/prose.py` prints `file:line: what is wrong` and fails if anything is.

Terms come from docs/prose-terms.txt. Sentences have a greatest length, and pages a least reading ease.
The engineering log is not checked.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TERMS = ROOT / "docs" / "prose-terms.txt"
LOG = ROOT / "docs" / "engineering-log"

MAX_README_WORDS = 900
MAX_SENTENCE = 40  # words
MAX_MEAN_SENTENCE = 16.0  # of a page
MIN_READING_EASE = 55.0  # Flesch: 30 to 50 is an academic text, 60 to 70 a newspaper
MIN_SENTENCES = 10  # fewer say nothing about a page

_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FIGURE = re.compile(r"<!-- figure: .*?<!-- end figure -->", re.DOTALL)
_OPTIONS = re.compile(r"<!-- options: .*?<!-- end options -->", re.DOTALL)  # written by docs/cli_reference.py
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_WORD = re.compile(r"[^\W_]*[^\W\d_][^\W_]*(?:['\u2019-][^\W_]+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"”)*]*\s+(?=[A-Z`\[*“(])|(?<=:)\s+(?=[A-Z])")
_VOWELS = re.compile(r"[aeiouy]+")


@dataclass(frozen=True, slots=True)
class Term:
    """A pattern that documents must not contain, in code or outside it, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str
    in_code: bool


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of running text, and the line on which its paragraph begins."""

    line: int
    text: str

    @property
    def words(self) -> list[str]:
        return _WORD.findall(self.text)


def pages() -> list[Path]:
    """Every document of users: the pages of docs/ and the documents beside it."""
    docs = [path for path in sorted((ROOT / "docs").rglob("*.md")) if LOG not in path.parents]
    beside = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    return [path for path in beside if path.exists()] + docs


def read_terms(text: str) -> list[Term]:
    """The terms of a list (see its first lines). Raises ValueError for a line that is none."""
    terms: list[Term] = []
    section = ""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            section = line.strip("[] ")
            continue
        term, arrow, instead = line.partition(" => ")
        if not arrow or section not in ("names", "prose"):
            raise ValueError(f"{TERMS.name}: {line!r} is no `term => instead` in [names] or [prose]")
        if section == "names":
            terms.append(Term(re.compile(rf"(?<!\w){re.escape(term)}(?!\w)"), instead, True))
        else:
            terms.append(Term(re.compile(term, re.IGNORECASE), instead, False))
    return terms


def without(pattern: re.Pattern[str], text: str, by: str = "") -> str:
    """The text with every match replaced, its line breaks kept."""
    return pattern.sub(lambda match: by + "\n" * match[0].count("\n"), text)


def running_text(text: str) -> str:
    """Markdown without blocks of code, comments and figures, and with code in a line as one word."""
    for pattern in (_FIGURE, _FENCE, _COMMENT):
        text = without(pattern, text)
    text = _LINK.sub(lambda match: match[1] + "\n" * (match[0].count("\n") - match[1].count("\n")), text)
    return _CODE.sub("Code", text)  # a capital, so that a sentence may begin with it


def code_text(text: str) -> str:
    """The code of a document, in blocks and in lines; all else is blank."""
    blank = list(re.sub(r"[^\n]", " ", text))
    for pattern in (_FENCE, _CODE):
        for match in pattern.finditer(text):
            blank[match.start() : match.end()] = match[0]
    return "".join(blank)


def sentences(text: str) -> Iterator[Sentence]:
    """The sentences of paragraphs and list items; headings and tables have none."""
    paragraph: list[str] = []
    first = 1
    for number, line in enumerate([*running_text(text).splitlines(), ""], 1):
        bare = line.strip()
        begins = bool(re.match(r"([-*]|\d+\.)\s", bare))
        if (not bare or begins or bare.startswith(("#", "|", ":::"))) and paragraph:
            for sentence in _SENTENCE_END.split(" ".join(paragraph)):
                yield Sentence(first, sentence)
            paragraph = []
        if bare and not bare.startswith(("#", "|", ":::")):
            first = first if paragraph else number
            paragraph.append(re.sub(r"^([-*]|\d+\.)\s+", "", bare))


def syllables(word: str) -> int:
    """An estimate: groups of vowels, without a silent e."""
    word = word.lower()
    count = len(_VOWELS.findall(word))
    if word.endswith("e") and not word.endswith(("le", "ee")) and count > 1:
        count -= 1
    return max(1, count)


def reading_ease(found: list[Sentence]) -> float:
    """Flesch's reading ease of some sentences."""
    words = [word for sentence in found for word in sentence.words]
    return 206.835 - 1.015 * len(words) / len(found) - 84.6 * sum(map(syllables, words)) / len(words)


def count_words(text: str) -> int:
    """Words and numbers of a document, code and tables included; what rows or the commands' code write is not counted."""
    for pattern in (_FIGURE, _OPTIONS, _COMMENT):
        text = without(pattern, text)
    return sum(any(map(str.isalnum, word)) for word in text.split())


def problems_in(name: str, text: str, terms: list[Term]) -> Iterator[str]:
    """What is wrong with one document."""
    prose, code = running_text(text), code_text(text)
    for term in terms:
        searched = code if term.in_code else prose
        for match in term.pattern.finditer(searched):
            line = searched.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: {match[0]!r}: write {term.instead}"
    found = [sentence for sentence in sentences(text) if len(sentence.words) > 2]
    for sentence in found:
        if len(sentence.words) > MAX_SENTENCE:
            start = " ".join(sentence.text.split()[:6])
            yield f"{name}:{sentence.line}: {len(sentence.words)} words in the sentence {start!r} ...: at most {MAX_SENTENCE}"
    if len(found) < MIN_SENTENCES:
        return
    mean = sum(len(sentence.words) for sentence in found) / len(found)
    if mean > MAX_MEAN_SENTENCE:
        yield f"{name}:1: sentences have {mean:.1f} words on average: at most {MAX_MEAN_SENTENCE:g}"
    if (ease := reading_ease(found)) < MIN_READING_EASE:
        yield f"{name}:1: reading ease is {ease:.0f}: at least {MIN_READING_EASE:g}; use shorter words and sentences"


def problems() -> list[str]:
    """What is wrong with all documents."""
    terms = read_terms(TERMS.read_text(encoding="utf-8"))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in pages()}
    found = [problem for name, text in texts.items() for problem in problems_in(name, text, terms)]
    if (words := count_words(texts["README.md"])) > MAX_README_WORDS:
        found.append(f"README.md:1: {words:,} words: at most {MAX_README_WORDS:,}")
    return found


if __name__ == "__main__":
    lines = problems()
    print("\n".join(lines) or "prose: no problems")
    sys.exit(bool(lines))
