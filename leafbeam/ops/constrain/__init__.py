"""The constrained step: `step`, one module per backend (`ops.backend`), all equal to `reference`."""

from leafbeam.ops.constrain.types import Beams, Boosts, Scoring, num_columns, request_filters

__all__ = ["Beams", "Boosts", "Scoring", "num_columns", "request_filters"]
