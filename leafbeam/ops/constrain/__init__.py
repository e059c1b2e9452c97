"""The constrained step: one verb, `step`, one file per backend; `reference` is the truth."""

from leafbeam.ops.constrain.types import Beams, RequestFilter, Scoring, request_filters

__all__ = ["Beams", "RequestFilter", "Scoring", "request_filters"]
