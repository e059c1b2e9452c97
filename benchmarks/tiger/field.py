"""Recall@10 and NDCG@10 that others report for the next item of Amazon's Beauty, Sports and Toys, with protocol and source.

The last item of each user is the test and all items are ranked. A source in the form "A, quoted by B" was read in B only.
"not said": the source was read and does not say. "not known": the source itself was not read. The data is that of 2014 in all
of them, but for OpenOneRec, which does not say.
"""

from __future__ import annotations

from benchmarks.tiger.table_1 import PUBLISHED

__all__ = ["FIELD", "Entry", "Pair"]

Pair = tuple[float | None, float | None]  # Recall@10, NDCG@10; None: not reported, or not found
Entry = dict[str, Pair | str]
_NONE: Pair = (None, None)


def _entry(
    source: str,
    beauty: Pair = _NONE,
    sports: Pair = _NONE,
    toys: Pair = _NONE,
    *,
    seen: str = "not known",
    validation: str = "not known",
) -> Entry:
    return {
        "beauty": beauty,
        "sports": sports,
        "toys": toys,
        "seen": seen,
        "validation": validation,
        "source": source,
    }


def _of_table_1(name: str, source: str, *, seen: str, validation: str) -> Entry:
    beauty, sports, toys = (PUBLISHED[name][data][2:] for data in ("beauty", "sports", "toys"))
    return _entry(source, beauty, sports, toys, seen=seen, validation=validation)


# Read on 2026-11-30. Seen: are items of the user's history removed from the list? Validation: is the model trained on them?
FIELD: dict[str, Entry] = {
    "MARIUS with COSETTE": _entry(
        "arXiv 2508.14910, Table 5, quoted by a report on a re-run and by summaries",
        (0.1002, 0.0546),
        (0.0672, 0.0362),
        seen="removed",
        validation="no",
    ),
    "MARIUS with COSETTE, run again": _entry(
        "that report: the authors' code, five seeds", (0.0817, 0.0440), (0.0487, 0.0259), seen="removed", validation="no"
    ),
    "SASRec++": _entry(
        "the paper of MARIUS, quoted by the same report and a summary",
        (0.0973, 0.0557),
        (0.0644, 0.0362),
        (0.0994, None),
        seen="removed",
        validation="no",
    ),
    "SASRec++, run again": _entry(
        "that report: the authors' code, five seeds", (0.0906, 0.0522), (0.0515, 0.0291), seen="removed", validation="no"
    ),
    "EnsRec": _entry(
        "arXiv 2512.17820, quoted by a summary", (0.0980, 0.0565), (0.0613, 0.0343), (0.1061, 0.0625), validation="no"
    ),
    "SASRec, sampled softmax": _entry(
        "README of github.com/blondered/transformer_benchmark",
        (0.0921, 0.0531),
        (0.0569, 0.0314),
        (0.0970, 0.0580),
        seen="not said",
        validation="not said",
    ),
    "eSASRec": _entry(
        "the same README, by the paper's authors",
        (0.0928, 0.0523),
        (0.0560, 0.0323),
        (0.0939, 0.0538),
        seen="not said",
        validation="not said",
    ),
    "OpenOneRec": _entry(
        "README of github.com/Kuaishou-OneRec/OpenOneRec",
        (0.0924, None),
        (0.0547, None),
        (0.0953, None),
        seen="not said",
        validation="not said",
    ),
    "BARGE": _entry("arXiv 2607.21028, Table II, quoted by a summary", (0.0927, 0.0547), (0.0544, 0.0308)),
    "DiffGRM": _entry(
        "arXiv 2510.21805, quoted by a summary; counts codes, which items share",
        (0.0876, 0.0502),
        (0.0550, 0.0305),
        (0.0834, 0.0524),
    ),
    "DiffGRM, run again": _entry("README of github.com/hieuddo/cornac; counts items", _NONE, (0.0246, 0.0135), validation="no"),
    "RPG": _entry("arXiv 2506.05781, quoted by the same README", (0.0809, 0.0464), (0.0463, 0.0263), (0.0869, 0.0490)),
    "RPG, run again": _entry(
        "the same README", (0.0789, 0.0454), (0.0420, 0.0241), (0.0898, 0.0506), seen="not said", validation="no"
    ),
    "LIGER": _entry(
        "arXiv 2411.18814, quoted by a summary; without new items",
        (0.0745, 0.0402),
        (0.0440, 0.0243),
        (0.0714, 0.0376),
        validation="no",
    ),
    "LIGER-Dense, run again": _entry(
        "the paper of EnsRec, quoted by a summary", (0.0919, 0.0473), (0.0562, 0.0295), (0.0947, 0.0467), validation="no"
    ),
    "ActionPiece": _entry("arXiv 2502.13581, quoted by the README of eSASRec", (0.0775, 0.0424), (0.0500, 0.0264)),
    "TIGER": _of_table_1("TIGER", "arXiv 2305.05065, Table 1", seen="not said", validation="no"),
    "GRID, residual k-means": _of_table_1(
        "GRID, residual k-means", "arXiv 2507.22224", seen="not said", validation="not known"
    ),
    "S3-Rec": _of_table_1("S3-Rec", "Zhou et al., 2020, Table 2", seen="removed", validation="no"),
    "SASRec": _of_table_1("SASRec (S3-Rec's table)", "the same table", seen="removed", validation="no"),
}
