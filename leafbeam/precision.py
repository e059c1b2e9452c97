"""The precisions of the matrix products of a model's layers on a CPU (`SidModel.with_precision`)."""

from typing import Literal

Precision = Literal["float32", "bfloat16", "int8"]
