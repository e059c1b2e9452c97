"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["DeviceOption", "Format", "RunOption", "ScoringOption"]

Format = Literal["tables", "amazon", "movielens"]

RunOption = Annotated[Path, typer.Option("--run", help="The run directory, where commands leave files for one another.")]
DeviceOption = Annotated[str, typer.Option("--device", help="Device of the model: cpu, cuda, cuda:1, ...")]
ScoringOption = Annotated[
    Literal["full", "allowed"],
    typer.Option("--scoring", help="Normalise probabilities over the full codebook or over the allowed codes."),
]
