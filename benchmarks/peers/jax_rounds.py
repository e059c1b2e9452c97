"""Rounds of JAX peers: one jitted function a level, log-softmax, constraint and top-k together; the same top-k for all.

A peer is a pytree: its arrays are arguments of the compiled function, never constants in it. Nothing here imports torch.

Shapes: B requests, K beams, V codes, F offers a beam.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from leafbeam.extras import optional_imports
from leafbeam.ops.constrain import Scoring

# One thread on a CPU, like every other method; jax reads it when a process first imports jax.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
with optional_imports("this peer"):
    import jax
    import jax.numpy as jnp

__all__ = [
    "JaxBeams",
    "JaxOffers",
    "JaxPeer",
    "JaxSelection",
    "UnconstrainedJax",
    "complete",
    "extend",
    "jitted_transition",
    "on_device",
    "root",
    "search",
    "select",
]

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class JaxOffers:
    """As `peer.Offers`. log_p_BKF: float32, -inf where not legal. code_BKF: int32; None: offer f is code f."""

    log_p_BKF: Array
    code_BKF: Array | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class JaxSelection:
    """As `peer.Selection`."""

    scores_BK: Array
    parent_BK: Array
    slot_BK: Array
    code_BK: Array


class JaxPeer(Protocol):
    """As `peer.Peer`, traced: the level is a constant of each compiled round."""

    def root(self, batch_size: int) -> Any: ...

    def mask_step(self, level: int, state: Any, log_p_BKV: Array) -> tuple[Any, JaxOffers]: ...

    def advance(self, level: int, pending: Any, best: JaxSelection) -> Any: ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class JaxBeams:
    """Beams after a round: the peer's own state, their scores, and how they came about."""

    state: Any
    scores_BK: Array
    parent_BK: Array
    code_BK: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class UnconstrainedJax:
    """Beam search without any constraint: what the JAX peers' overhead is measured from."""

    def root(self, batch_size: int) -> None:
        """Nothing: an unconstrained search has no state."""

    def mask_step(self, level: int, state: None, log_p_BKV: Array) -> tuple[None, JaxOffers]:
        """Offer everything."""
        return None, JaxOffers(log_p_BKF=log_p_BKV)

    def advance(self, level: int, pending: None, best: JaxSelection) -> None:
        """Nothing: an unconstrained search has no state."""


def root(peer: JaxPeer, batch_size: int) -> JaxBeams:
    """One empty beam for each request."""
    zero = jnp.zeros((batch_size, 1), jnp.int32)
    scores_BK = jnp.zeros((batch_size, 1), jnp.float32)
    return JaxBeams(state=peer.root(batch_size), scores_BK=scores_BK, parent_BK=zero, code_BK=zero)


@partial(jax.jit, static_argnames=("level", "num_beams", "scoring"))
def extend(
    peer: JaxPeer, level: int, beams: JaxBeams, logits_BKV: Array, num_beams: int, scoring: Scoring = "full"
) -> JaxBeams:
    """One round: log-softmax, constrain, select, advance; scoring "allowed" takes the log-softmax of the offers alone.

    Logits of beams that are not there are left out: PPV approximate keeps 50 beams, not 70, of its first level.
    """
    logits_BKV = logits_BKV[:, : beams.scores_BK.shape[1]]
    if scoring == "allowed":
        pending, raw = peer.mask_step(level, beams.state, logits_BKV)
        log_p_BKF = jnp.where(raw.log_p_BKF > -jnp.inf, jax.nn.log_softmax(raw.log_p_BKF), -jnp.inf)
        offers = JaxOffers(log_p_BKF=log_p_BKF, code_BKF=raw.code_BKF)
    else:
        # Without the barrier XLA computes the exponentials again inside the selection: 26 ms instead of 13 at 32,768 codes.
        log_p_BKV = jax.lax.optimization_barrier(jax.nn.log_softmax(logits_BKV))
        pending, offers = peer.mask_step(level, beams.state, log_p_BKV)
    best = select(beams.scores_BK, offers, num_beams)
    state = peer.advance(level, pending, best)
    return JaxBeams(state=state, scores_BK=best.scores_BK, parent_BK=best.parent_BK, code_BK=best.code_BK)


@partial(jax.jit, static_argnames=("num_beams", "scoring"))
def search(peer: JaxPeer, logits_LBKV: Sequence[Array], num_beams: int, scoring: Scoring) -> list[JaxBeams]:
    """All rounds of a search over given logits in one compiled function."""
    rounds = [root(peer, logits_LBKV[0].shape[0])]
    for level, logits_BKV in enumerate(logits_LBKV):
        rounds.append(extend(peer, level, rounds[-1], logits_BKV, num_beams, scoring))
    return rounds[1:]


def select(scores_BK: Array, offers: JaxOffers, num_beams: int) -> JaxSelection:
    """The `num_beams` best (beam, offer) pairs of each request; fewer where there are fewer pairs."""
    batch_size, _, width = offers.log_p_BKF.shape
    total = (scores_BK[:, :, None] + offers.log_p_BKF).reshape(batch_size, -1)
    best, at = jax.lax.top_k(total, min(num_beams, total.shape[1]))
    code = slot = at % width
    if offers.code_BKF is not None:
        code = jnp.take_along_axis(offers.code_BKF.reshape(batch_size, -1), at, axis=1)
    return JaxSelection(scores_BK=best, parent_BK=at // width, slot_BK=slot, code_BK=code)


def on_device(values: Any) -> Array:
    """A copy of a numpy array on JAX's device, complete."""
    return jax.block_until_ready(jnp.array(values))


def complete(beams: Any) -> Any:
    """The same beams once they are computed."""
    return jax.block_until_ready(beams)


def jitted_transition(peer: Any, node_BK: Any, log_p_BKV: Any, width: int) -> Callable[[], tuple[Array, Array, Array]]:
    """A node-transition kernel on fixed inputs, compiled for one width; complete when it returns."""
    kernel = jax.jit(type(peer).transition, static_argnums=3)
    node, log_p = on_device(node_BK.astype("int32")), on_device(log_p_BKV)
    return lambda: jax.block_until_ready(kernel(peer, node, log_p, width))
