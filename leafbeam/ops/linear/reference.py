"""Products with a matrix in plain torch. Shapes: N rows, V outputs, D inputs."""

from torch import Tensor


def linear(rows_ND: Tensor, weight_VD: Tensor) -> Tensor:
    """Return rows @ weight.T (N, V), computed in float64; the result is float32."""
    return (rows_ND.double() @ weight_VD.double().T).float()
