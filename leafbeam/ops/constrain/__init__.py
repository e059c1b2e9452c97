"""The constrained step: `step`, one module per backend (`ops.backend`), all equal to `reference`."""

from leafbeam.ops.constrain.types import Beams, Boosts, Scoring, request_filters

__all__ = ["Beams", "Boosts", "Scoring", "request_filters"]
