"""The methods of one comparison, each as a round over given logits; one that cannot be here says why.

A round is log-softmax, constraint, the same top-k, and the state of the beams kept: what a decoding step does after the model's
head. Shapes: B requests, K beams, V codes, L levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.fixed_shape_bytes import version_bytes
from benchmarks.peers import peer as protocol
from benchmarks.peers.cpu_trie import CpuTrie
from benchmarks.peers.failure import failure_of
from benchmarks.peers.hash_bitmap import HashBitmap
from benchmarks.peers.marisa import MarisaTrie
from benchmarks.peers.ppv import Ppv
from benchmarks.peers.static import StaticPeer
from benchmarks.peers.static_matrix import matrix_nbytes
from benchmarks.peers.unconstrained import Unconstrained
from benchmarks.static.catalog import Catalog
from leafbeam.errors import MissingExtraError
from leafbeam.index import Trie, Version
from leafbeam.index.level import code_dtype
from leafbeam.ops.constrain import Beams, request_filters
from leafbeam.ops.constrain.cpu import step as cpu
from leafbeam.ops.constrain.static.matrix import TransitionMatrix

__all__ = ["LABELS", "LineUp", "Method", "gib", "reason_of"]

# In the order in which they are shown.
LABELS = {
    "leafbeam": "leafbeam",
    "leafbeam_packed": "leafbeam, packed",
    "leafbeam_jax": "leafbeam, JAX",
    "static_jax": "STATIC, JAX",
    "static_jax_scatter": "STATIC, JAX, scattered mask",
    "static_torch": "STATIC, torch",
    "static_scatter": "STATIC, torch, scattered mask",
    "ppv_approximate": "PPV approximate (top 50)",
    "ppv_exact": "PPV exact",
    "hash_bitmap": "hash bitmap",
    "cpu_trie": "CPU trie (dict)",
    "marisa": "marisa-trie, HF hook",
    "unconstrained": "unconstrained, torch",
    "unconstrained_jax": "unconstrained, JAX",
}

_JITTED = "jax.jit, a function a level"
_JAX_COPIES = 4  # of the index: packed on the host, and padded to its room on the device


def gib(nbytes: float) -> str:
    """Bytes as a person reads them."""
    return f"{nbytes / 2**30:,.2f} GiB"


@dataclass(frozen=True, kw_only=True, eq=False)
class Method:
    """prepare: the model's output as this method takes it, not timed. round: (level, beams or None, that) -> beams, complete
    when it returns. taken: beams -> (scores_BK, parent_BK, code_BK) in numpy. floor: the unconstrained method of its framework.
    dtype: of what it looks codes up in. form: how it runs. compiled: makes the same round through torch.compile, for one level.
    """

    name: str
    prepare: Callable[[NDArray[np.float32]], Any]
    round: Callable[[int, Any, Any], Any]
    taken: Callable[[Any], tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]
    exact: bool = True
    nbytes: int = 0
    floor: str = "unconstrained"
    peer: Any = None
    dtype: str = ""
    form: str = "numba"
    compiled: Callable[[], Callable[[int, Any, Any], Any]] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class LineUp:
    """methods: those that run, by name. left_out: those that do not, and why. waiting: those that fit, but not beside these.

    announce: told the name of the method that is about to run.
    """

    methods: dict[str, Method]
    left_out: dict[str, str]
    waiting: tuple[str, ...] = ()
    announce: Callable[[str], None] = lambda name: None

    @classmethod
    def of(
        cls,
        catalog: Catalog,
        *,
        batch_size: int,
        num_beams: int,
        device: str,
        memory: int,
        names: Sequence[str],
        announce: Callable[[str], None] = lambda name: None,
    ) -> LineUp:
        """Build what fits into `memory` bytes, the cheapest first; what does not, or fails, is left out by name."""
        methods: dict[str, Method] = {}
        left_out: dict[str, str] = {}
        waiting: list[str] = []
        codes_LM = catalog.sorted_codes()
        room = memory - catalog.trie.nbytes - catalog.trie.items.nbytes - codes_LM.nbytes
        held: dict[str, int] = {}
        builders = dict(_builders(catalog, codes_LM, batch_size, num_beams, device, held))
        for name in sorted(names, key=lambda one: builders[one][0]()):
            needs, build = builders[name]
            if needs() > room:
                left_out[name] = f"does not fit: needs {gib(needs())}, {gib(max(0, room))} of {gib(memory)} are left"
                continue
            if needs() > room - sum(held.values()):
                waiting.append(name)
                continue
            announce(name)
            try:
                methods[name] = build()
            except Exception as error:
                left_out[name] = reason_of(error)
        kept = {name: methods[name] for name in names if name in methods}
        return cls(methods=kept, left_out=left_out, waiting=tuple(waiting), announce=announce)

    def only(self, methods: dict[str, Method], left_out: dict[str, str]) -> LineUp:
        """These of the methods; the others are left out for these reasons."""
        return replace(self, methods=methods, left_out=self.left_out | left_out)


def reason_of(error: Exception) -> str:
    """Why a method is left out: what it raised."""
    failure = failure_of(error)
    return failure.reason if isinstance(error, MissingExtraError) else str(failure)


def _builders(
    catalog: Catalog, codes_LM: NDArray[Any], batch_size: int, num_beams: int, device: str, held: dict[str, int]
) -> Iterator[tuple[str, tuple[Callable[[], int], Callable[[], Method]]]]:
    """(name, (bytes that it will hold, how to make it)). `held` remembers what has been made; what two share is made once."""
    shape, nodes_L, trie = catalog.shape, catalog.nodes_L, catalog.trie
    made: list[TransitionMatrix] = []
    tables: list[torch.Tensor] = []
    static_needs = matrix_nbytes(nodes_L, shape.codebook_sizes)

    def arrays() -> TransitionMatrix:
        if not made:
            made.append(TransitionMatrix.of_sorted(codes_LM, shape.codebook_sizes))
            held["static"] = static_needs
        return made[0]

    def torch_peer(name: str, build: Callable[[], protocol.Peer], dtype: str = "", needs: int = 0) -> Callable[[], Method]:
        def make() -> Method:
            method = _torch_method(name, build(), dtype, batch_size, num_beams, device)
            held[name] = needs
            return method

        return make

    def host_peer(name: str, build: Callable[[], protocol.Peer], dtype: str, needs: int) -> Callable[[], Method]:
        make = torch_peer(name, build, dtype, needs)
        return lambda: replace(make(), form="Python on the host, torch around it", compiled=None)

    def table() -> torch.Tensor:
        if not tables:
            tables.append(Ppv.of_sorted(codes_LM, device=device).codes_LM1)
            held["table"] = codes_LM.nbytes
        return tables[0]

    def of_static() -> int:
        return 0 if made else static_needs

    def of_table() -> int:
        return 0 if tables else codes_LM.nbytes

    def jax_static(name: str, *, scatter: bool) -> Callable[[], Method]:
        def make() -> Method:
            from benchmarks.peers import jax_rounds
            from benchmarks.peers.static_jax import StaticJax

            peer = StaticJax.of(arrays(), scatter=scatter)
            return _jax_method(name, peer, batch_size, num_beams, arrays().nbytes, jax_rounds, "int32")

        return make

    def jax_leafbeam() -> Method:
        method = _leafbeam_jax_method(trie, batch_size, num_beams)
        held["leafbeam_jax"] = _JAX_COPIES * trie.nbytes
        return method

    def jax_floor() -> Method:
        from benchmarks.peers import jax_rounds

        return _jax_method("unconstrained_jax", jax_rounds.UnconstrainedJax(), batch_size, num_beams, 0, jax_rounds, "")

    def fixed(nbytes: int) -> Callable[[], int]:
        return lambda: nbytes

    hash_bytes, dict_bytes, keys = 2**27, CpuTrie.needs(nodes_L), MarisaTrie.needs(trie.num_leaves)
    free = fixed(0)
    yield "unconstrained", (free, torch_peer("unconstrained", Unconstrained))
    yield "unconstrained_jax", (free, jax_floor)
    yield "leafbeam", (free, lambda: _leafbeam_method("leafbeam", trie, batch_size, num_beams))
    yield (
        "leafbeam_packed",
        (fixed(trie.nbytes), lambda: _leafbeam_method("leafbeam_packed", trie.packed(), batch_size, num_beams)),
    )
    yield "leafbeam_jax", (fixed(_JAX_COPIES * trie.nbytes), jax_leafbeam)
    codes = str(codes_LM.dtype)
    yield "ppv_exact", (of_table, torch_peer("ppv_exact", lambda: Ppv(codes_LM1=table()), codes))
    yield "ppv_approximate", (of_table, torch_peer("ppv_approximate", lambda: Ppv(codes_LM1=table(), num_candidates=50), codes))
    yield (
        "hash_bitmap",
        (
            fixed(hash_bytes),
            torch_peer("hash_bitmap", lambda: HashBitmap.of_sorted(codes_LM, device=device), "bits", hash_bytes),
        ),
    )
    static, scattered = (lambda scatter=scatter: StaticPeer.of(arrays(), device, scatter=scatter) for scatter in (False, True))
    yield "static_torch", (of_static, torch_peer("static_torch", static, "int32"))
    yield "static_scatter", (of_static, torch_peer("static_scatter", scattered, "int32"))
    yield "static_jax", (of_static, jax_static("static_jax", scatter=False))
    yield "static_jax_scatter", (of_static, jax_static("static_jax_scatter", scatter=True))
    yield "marisa", (fixed(keys), host_peer("marisa", lambda: MarisaTrie.of_sorted(codes_LM), "characters", keys))
    yield (
        "cpu_trie",
        (fixed(dict_bytes), host_peer("cpu_trie", lambda: CpuTrie.of_sorted(codes_LM, nodes_L), "int", dict_bytes)),
    )


def _leafbeam_method(name: str, trie: Trie, batch_size: int, num_beams: int) -> Method:
    """`ops.constrain.cpu`: log-sum-exp, constraint and selection are one loop."""
    arrays = cpu.bind(trie)
    filters = cpu.bind_filters(arrays, request_filters(trie, batch_size, None, None))
    root = Beams.start(
        np.zeros((1, batch_size, 1), np.int64),
        np.full((1, batch_size, 1), trie.num_leaves),
        np.zeros((batch_size, 1), np.float32),
    )

    def round_of(level: int, beams: Any, logits: Any) -> Any:
        given = root if beams is None else beams
        return cpu.step(arrays, level, given, logits, filters, num_beams=num_beams, scoring="full")

    return Method(
        name=name,
        prepare=lambda values: values,
        round=round_of,
        taken=lambda beams: (beams.scores, beams.parent, beams.code),
        nbytes=trie.nbytes,
        peer=arrays,
        dtype="packed bits" if name == "leafbeam_packed" else code_dtype(trie.codebook_sizes[0]).__name__,
    )


def _leafbeam_jax_method(trie: Trie, batch_size: int, num_beams: int) -> Method:
    """`ops.constrain.jax`, one jitted function a level; logits that are no numbers are looked for in each, as everywhere."""
    from benchmarks.peers import jax_rounds
    from leafbeam.ops.constrain.fixed_shape import jax as backend

    version = Version.of(trie)
    arrays = backend.bind(version)
    filters = backend.bind_filters(arrays, request_filters(version, batch_size, None, None))
    root = jax_rounds.on_device(np.zeros((1, batch_size, 1), np.int32))
    whole = jax_rounds.on_device(np.full((1, batch_size, 1), trie.num_leaves, np.int32))
    zero = jax_rounds.on_device(np.zeros((batch_size, 1), np.float32))

    def round_of(level: int, beams: Any, logits: Any) -> Any:
        lo, hi, scores = (root, whole, zero) if beams is None else (beams.lo, beams.hi, beams.scores)
        return jax_rounds.complete(
            backend.step(arrays, level, Beams.start(lo, hi, scores), logits, filters, num_beams=num_beams, scoring="full")
        )

    return Method(
        name="leafbeam_jax",
        prepare=jax_rounds.on_device,
        round=round_of,
        taken=lambda beams: (np.asarray(beams.scores), np.asarray(beams.parent), np.asarray(beams.code)),
        nbytes=sum(version_bytes(arrays).values()),
        floor="unconstrained_jax",
        dtype="packed bits",
        form=_JITTED,
    )


def _torch_method(name: str, peer: protocol.Peer, dtype: str, batch_size: int, num_beams: int, device: str) -> Method:
    on_cpu = torch.device(device).type == "cpu"
    root = protocol.root(peer, batch_size, device)

    def prepare(values: NDArray[np.float32]) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        return tensor if on_cpu else tensor.to(device)

    def rounds_by(extend: Callable[..., protocol.PeerBeams]) -> Callable[[int, Any, Any], Any]:
        def round_of(level: int, beams: Any, logits: Any) -> Any:
            start = root if beams is None else beams
            # Of the first level's top 50, PPV approximate keeps 50 beams, not 70.
            done = extend(peer, start, logits[:, : start.scores_BK.shape[1]], num_beams)
            if not on_cpu:
                torch.cuda.synchronize(device)
            return done

        return round_of

    def taken(beams: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        scores, parent, code = (one.cpu().numpy() for one in (beams.scores_BK, beams.parent_BK, beams.code_BK))
        return scores, parent, code

    return Method(
        name=name,
        prepare=prepare,
        round=rounds_by(protocol.extend),
        taken=taken,
        exact=peer.exact,
        nbytes=peer.nbytes,
        peer=peer,
        dtype=dtype,
        form="torch",
        compiled=lambda: rounds_by(protocol.compiled_round()),
    )


def _jax_method(name: str, peer: Any, batch_size: int, num_beams: int, nbytes: int, rounds: Any, dtype: str) -> Method:
    root = rounds.root(peer, batch_size)

    def prepare(values: NDArray[np.float32]) -> Any:
        return rounds.on_device(values)

    def round_of(level: int, beams: Any, logits: Any) -> Any:
        start = root if beams is None else beams
        return rounds.complete(rounds.extend(peer, level, start, logits, num_beams))

    def taken(beams: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        return np.asarray(beams.scores_BK), np.asarray(beams.parent_BK), np.asarray(beams.code_BK)

    return Method(
        name=name,
        prepare=prepare,
        round=round_of,
        taken=taken,
        exact=name != "unconstrained_jax",
        nbytes=nbytes,
        floor="unconstrained_jax",
        peer=peer,
        dtype=dtype,
        form=_JITTED,
    )
