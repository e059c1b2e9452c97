"""The methods of one comparison, each as a round over given logits; one that cannot be here says why.

A round is log-softmax, constraint, the same top-k, and the state of the beams kept: what a decoding step does after the model's
head. Shapes: B requests, K beams, V codes, L levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
    "ppv_approximate_jax": "PPV approximate, JAX",
    "ppv_exact": "PPV exact",
    "ppv_exact_jax": "PPV exact, JAX",
    "hash_bitmap": "hash bitmap",
    "hash_bitmap_jax": "hash bitmap, JAX",
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


Builder = tuple[Callable[[], int], Callable[[], Method]]  # bytes that it will hold, how to make it


@dataclass(frozen=True, kw_only=True, eq=False)
class _Workshop:
    """The parts that the builders of a line-up share. held: bytes of what has been made, by name. shared: made once."""

    batch_size: int
    num_beams: int
    device: str
    held: dict[str, int]
    shared: dict[str, Any] = field(default_factory=dict[str, Any])

    def once(self, name: str, nbytes: int, make: Callable[[], Any]) -> Any:
        """Return a part that several methods read, made for the first."""
        if name not in self.shared:
            self.shared[name] = make()
            self.held[name] = nbytes
        return self.shared[name]

    def unless(self, name: str, nbytes: int) -> Callable[[], int]:
        """The bytes of something shared, as long as it has not been made."""
        return lambda: 0 if name in self.shared else nbytes

    def torch(self, name: str, build: Callable[[], protocol.Peer], dtype: str = "", needs: int = 0) -> Callable[[], Method]:
        """A torch peer that holds so many bytes of its own."""

        def make() -> Method:
            method = _torch_method(name, build(), dtype, self.batch_size, self.num_beams, self.device)
            self.held[name] = needs
            return method

        return make

    def host(self, name: str, build: Callable[[], protocol.Peer], dtype: str, needs: int) -> Builder:
        """A peer that builds its masks in Python."""
        make = self.torch(name, build, dtype, needs)
        return lambda: needs, lambda: replace(make(), form="Python on the host, torch around it", compiled=None)

    def jax(self, name: str, build: Callable[[], Any], nbytes: int, dtype: str, *, exact: bool = True) -> Callable[[], Method]:
        """A JAX peer."""
        return lambda: _jax_method(name, build(), self.batch_size, self.num_beams, nbytes, dtype, exact=exact)


def _builders(
    catalog: Catalog, codes_LM: NDArray[Any], batch_size: int, num_beams: int, device: str, held: dict[str, int]
) -> Iterator[tuple[str, Builder]]:
    """Each method's builder, by name. `held` remembers what has been made; what two share is made once."""
    trie = catalog.trie
    shop = _Workshop(batch_size=batch_size, num_beams=num_beams, device=device, held=held)

    def packed() -> Method:
        return _leafbeam_method("leafbeam_packed", trie.packed(), batch_size, num_beams)

    def leafbeam_jax() -> Method:
        method = _leafbeam_jax_method(trie, batch_size, num_beams)
        held["leafbeam_jax"] = _JAX_COPIES * trie.nbytes
        return method

    yield "unconstrained", (lambda: 0, shop.torch("unconstrained", Unconstrained))
    yield "unconstrained_jax", (lambda: 0, shop.jax("unconstrained_jax", _unconstrained_jax, 0, "", exact=False))
    yield "leafbeam", (lambda: 0, lambda: _leafbeam_method("leafbeam", trie, batch_size, num_beams))
    yield "leafbeam_packed", (lambda: trie.nbytes, packed)
    yield "leafbeam_jax", (lambda: _JAX_COPIES * trie.nbytes, leafbeam_jax)
    yield from _static_builders(catalog, codes_LM, shop)
    yield from _ppv_builders(codes_LM, shop)
    yield from _bitmap_builders(codes_LM, shop)
    keys, dict_bytes = MarisaTrie.needs(trie.num_leaves), CpuTrie.needs(catalog.nodes_L)
    yield "marisa", shop.host("marisa", lambda: MarisaTrie.of_sorted(codes_LM), "characters", keys)
    yield "cpu_trie", shop.host("cpu_trie", lambda: CpuTrie.of_sorted(codes_LM, catalog.nodes_L), "int", dict_bytes)


def _static_builders(catalog: Catalog, codes_LM: NDArray[Any], shop: _Workshop) -> Iterator[tuple[str, Builder]]:
    """STATIC, lean and with the scattered mask, over one matrix."""
    sizes = catalog.shape.codebook_sizes
    nbytes = matrix_nbytes(catalog.nodes_L, sizes)
    needs = shop.unless("static", nbytes)

    def matrix() -> TransitionMatrix:
        return shop.once("static", nbytes, lambda: TransitionMatrix.of_sorted(codes_LM, sizes))

    def in_jax(name: str, scatter: bool) -> Method:
        from benchmarks.peers.static_jax import StaticJax

        return shop.jax(name, lambda: StaticJax.of(matrix(), scatter=scatter), matrix().nbytes, "int32")()

    for suffix, scatter in (("", False), ("_scatter", True)):
        name = "static_scatter" if scatter else "static_torch"
        yield name, (needs, shop.torch(name, partial(_static_torch, matrix, shop.device, scatter), "int32"))
        yield f"static_jax{suffix}", (needs, partial(in_jax, f"static_jax{suffix}", scatter))


def _ppv_builders(codes_LM: NDArray[Any], shop: _Workshop) -> Iterator[tuple[str, Builder]]:
    """PPV, of all codes and of the 50 best: in each framework over one table."""
    nbytes, dtype = codes_LM.nbytes, str(codes_LM.dtype)

    def in_torch(num_candidates: int | None) -> Ppv:
        table = shop.once("table", nbytes, lambda: Ppv.of_sorted(codes_LM, device=shop.device).codes_LM1)
        return Ppv(codes_LM1=table, num_candidates=num_candidates)

    def in_jax(num_candidates: int | None) -> Any:
        from benchmarks.peers.baselines_jax import PpvJax, columns_of

        columns = shop.once("columns", nbytes, lambda: columns_of(codes_LM))
        return PpvJax(columns=columns, num_candidates=num_candidates)

    for name, count in (("ppv_exact", None), ("ppv_approximate", 50)):
        yield name, (shop.unless("table", nbytes), shop.torch(name, partial(in_torch, count), dtype))
        jax = shop.jax(f"{name}_jax", partial(in_jax, count), nbytes, dtype, exact=count is None)
        yield f"{name}_jax", (shop.unless("columns", nbytes), jax)


def _bitmap_builders(codes_LM: NDArray[Any], shop: _Workshop) -> Iterator[tuple[str, Builder]]:
    """The hash bitmap, in each framework from one that is built once."""
    nbytes = 2**27

    def bitmap() -> HashBitmap:
        return shop.once("bitmap", nbytes, lambda: HashBitmap.of_sorted(codes_LM, device=shop.device))

    def in_jax() -> Any:
        from benchmarks.peers.baselines_jax import HashBitmapJax

        return shop.once("bitmap of JAX", nbytes, lambda: HashBitmapJax.of(bitmap()))

    needs = shop.unless("bitmap", nbytes)
    yield "hash_bitmap", (needs, shop.torch("hash_bitmap", bitmap, "bits"))
    jax = shop.jax("hash_bitmap_jax", in_jax, nbytes, "bits", exact=False)
    yield "hash_bitmap_jax", (lambda: needs() + nbytes, jax)


def _unconstrained_jax() -> Any:
    from benchmarks.peers.jax_rounds import UnconstrainedJax

    return UnconstrainedJax()


def _static_torch(matrix: Callable[[], TransitionMatrix], device: str, scatter: bool) -> StaticPeer:
    return StaticPeer.of(matrix(), device, scatter=scatter)


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


def _jax_method(name: str, peer: Any, batch_size: int, num_beams: int, nbytes: int, dtype: str, *, exact: bool) -> Method:
    from benchmarks.peers import jax_rounds as rounds

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
        exact=exact,
        nbytes=nbytes,
        floor="unconstrained_jax",
        peer=peer,
        dtype=dtype,
        form=_JITTED,
    )
