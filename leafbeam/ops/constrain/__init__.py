"""The constrained step: `step`, one module per backend (`ops.backend`), all equal to `reference`."""

from leafbeam.ops.constrain.types import AnyArray, Beams, Boosts, HostBeams, Scoring, num_columns, request_filters

__all__ = ["AnyArray", "Beams", "Boosts", "HostBeams", "Scoring", "num_columns", "request_filters"]
