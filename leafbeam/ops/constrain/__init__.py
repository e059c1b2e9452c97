"""The constrained step: `step`, one module per backend (`ops.backend`), all equal to `reference`."""

from leafbeam.ops.constrain.types import Beams, RequestFilter, Scoring, request_filters

__all__ = ["Beams", "RequestFilter", "Scoring", "request_filters"]
