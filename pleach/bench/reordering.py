"""`bench reordering`: would a vocabulary whose tokens stand together when they are legal together make the head cheaper?

The CUDA study log proposes it (section 3.3.2) for its block filter. Real constraints on a real vocabulary (131,072 tokens),
states met on random legal walks, orders of the vocabulary:

    as it is       token ids
    popular        by how many of the states allow a token
    own            by the set of states that allow it, made for this constraint
    all            the same, made for all constraints at once
    other          the order made for another constraint: what a server finds whose weights were ordered for the one before

For each: the share of the head that is in a block of 64 with a legal token, for one row and for batches; beside it what dot
products gathered by row, and by token, read; and the milliseconds of each on a head of 256 values a token, one thread.

Shapes: R rows, V codes, M different legal sets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from pleach.bench.vocabulary import SIZE, real_vocabulary
from pleach.index.automaton import Automaton
from pleach.index.tokens import TokenTrie
from pleach.ops.head import Path, States, cpu

__all__ = ["clustered", "runs", "share_of_blocks"]

BLOCK, D = 64, 256
Order = NDArray[np.int64]  # the new place of each token

_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer"},
        "kind": {"enum": ["book", "film", "song"]},
        "stock": {"type": "boolean"},
    },
    "required": ["name", "age", "kind", "stock"],
}


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of each constraint."""
    tokens = TokenTrie.of(real_vocabulary())
    rng = np.random.default_rng(0)
    choices = [f"item-{number:06d}" for number in rng.integers(0, 10**6, 1000)]
    constraints = {
        "json": Automaton.from_json_schema(_SCHEMA, tokens),
        "choice": Automaton.from_choices(choices, tokens),
        "date": Automaton.from_regex(r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]", tokens),
        "words": Automaton.from_regex(r"[a-z]{1,12}( [a-z]{1,12}){0,8}", tokens),
    }
    walks = 5 if quick else 60
    met = {name: _states_met(rng, automaton, walks) for name, automaton in constraints.items()}
    sets = {name: _legal_sets(constraints[name], states) for name, states in met.items()}
    own = {name: clustered(legal_MV) for name, legal_MV in sets.items()}
    everything = clustered(np.concatenate(list(sets.values())))
    weight_VD = rng.standard_normal((SIZE, 32 if quick else D), np.float32)
    names = list(constraints)
    with threadpool_limits(1):
        for at, name in enumerate(names):
            orders = {
                "as it is": np.arange(SIZE),
                "popular": np.argsort(np.argsort(-sets[name].sum(0), kind="stable")),
                "own": own[name],
                "all": everything,
                "other": own[names[at - 1]],
            }
            yield _measure(rng, name, constraints[name], met[name], orders, weight_VD)


def clustered(legal_MV: NDArray[np.bool_]) -> Order:
    """The place of each token when tokens are sorted by which sets hold them; those that none holds come last.

    Sets that are met in more states should come first. Tokens of the first set are one run, of the second at most two, ...
    """
    keys = np.packbits(legal_MV, axis=0)  # (M / 8, V): the first set is the most significant bit
    return np.argsort(np.lexsort(255 - keys[::-1]))


def share_of_blocks(rows: Sequence[NDArray[np.integer]], order_V: Order, block: int = BLOCK) -> float:
    """The share of a vocabulary's blocks, in this order, that hold a token that some row may take."""
    blocks = np.unique(np.concatenate([order_V[codes] // block for codes in rows]))
    return len(blocks) / -(-len(order_V) // block)


def _states_met(rng: np.random.Generator, automaton: Automaton, walks: int) -> NDArray[np.int64]:
    """The states of random legal walks of at most 40 tokens, with what may follow in each."""
    states: list[int] = []
    for _ in range(walks):
        state = 0
        for _ in range(40):
            legal = automaton.allowed(state)
            if len(legal) == 0:
                break
            states.append(state)
            state = automaton.next(state, int(rng.choice(legal)))
    return np.array(states, np.int64)


def _legal_sets(automaton: Automaton, states: NDArray[np.int64], most: int = 256) -> NDArray[np.bool_]:
    """The legal sets of the states that are met most, as masks (M, V), the commonest first."""
    different, counts = np.unique(states, return_counts=True)
    chosen = different[np.argsort(-counts, kind="stable")[:most]]
    legal_MV = np.zeros((len(chosen), automaton.vocabulary_size), np.bool_)
    for mask_V, state in zip(legal_MV, chosen.tolist(), strict=True):
        mask_V[automaton.allowed(state)] = True
    return legal_MV


def _measure(
    rng: np.random.Generator,
    name: str,
    automaton: Automaton,
    met: NDArray[np.int64],
    orders: Mapping[str, Order],
    weight_VD: NDArray[np.float32],
) -> tuple[dict[str, Any], dict[str, Any]]:
    cells: list[dict[str, Any]] = []
    for rows in (1, 16, 140):
        batches = [[automaton.allowed(state) for state in rng.choice(met, rows).tolist()] for _ in range(3 if rows > 1 else 60)]
        hidden_RD = rng.standard_normal((rows, weight_VD.shape[1]), np.float32)
        legal = float(np.mean([sum(map(len, batch)) for batch in batches])) / SIZE
        distinct = float(np.mean([len(np.unique(np.concatenate(batch))) for batch in batches])) / SIZE
        cells.append(
            {
                "rows": rows,
                "gather_reads": round(legal, 5),
                "tokens_read": round(distinct, 5),
                "blocks_read": {
                    order: round(float(np.mean([share_of_blocks(batch, order_V) for batch in batches])), 5)
                    for order, order_V in orders.items()
                },
                "ms": _milliseconds(hidden_RD, weight_VD, batches, orders),
            }
        )
    parameters = {"constraint": name, "V": SIZE, "D": weight_VD.shape[1], "block": BLOCK, "states_met": len(np.unique(met))}
    return parameters, {"cells": cells}


def _milliseconds(
    hidden_RD: NDArray[np.float32],
    weight_VD: NDArray[np.float32],
    batches: list[list[NDArray[Any]]],
    orders: Mapping[str, Order],
) -> dict[str, float]:
    """The median over the batches of each way; blocks as the vocabulary is and in the constraint's own order."""
    ways: dict[str, tuple[Path, str]] = {
        "gather": ("gather", "as it is"),
        "tokens": ("tokens", "as it is"),
        "blocks": ("blocks", "as it is"),
        "blocks, own order": ("blocks", "own"),
        "dense": ("dense", "as it is"),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for batch in batches[:7]:
        for way, (path, order) in ways.items():
            rows = [np.sort(orders[order][codes]) for codes in batch]
            states = States.of(np.cumsum([0, *map(len, rows)]), np.concatenate(rows), SIZE)
            begin = time.perf_counter()
            cpu.head(hidden_RD, weight_VD, states, "allowed", path=path)
            times[way].append(time.perf_counter() - begin)
    return {way: round(float(np.median(seconds)) * 1e3, 4) for way, seconds in times.items()}
