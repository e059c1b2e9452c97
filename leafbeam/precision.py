"""The precisions of the matrix products of a model's layers (`SidModel.with_precision`)."""

from typing import Literal

Precision = Literal["float32", "bfloat16", "int8", "fp8"]
