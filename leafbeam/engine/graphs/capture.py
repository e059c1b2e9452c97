"""The choice whether an engine captures its searches: by default it does so where it can, and otherwise says why not."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leafbeam.engine.graphs.graph import Graphs
from leafbeam.engine.settings import Settings
from leafbeam.errors import ArgumentError
from leafbeam.model import EncoderDecoder, Transformer

log = logging.getLogger("leafbeam.engine")


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """The graphs of an engine, or why it has none.

    Args:
        graphs: The graphs.
        why_none: Why there are no graphs; None if there are, or if the engine does not need any.
    """

    graphs: Graphs | None = None
    why_none: str | None = None

    @property
    def text(self) -> str | None:
        """Return in words how many graphs are ready, or why there is none; None for an engine that does not need any."""
        if self.graphs is not None and self.graphs.captured:
            return str(self.graphs)
        return None if self.why_none is None else f"none: {self.why_none}"


def check_can_be_captured(model: Any, *, is_on_gpu: bool) -> Transformer | EncoderDecoder:
    """Return the model, or raise ArgumentError if its searches cannot be captured."""
    if not (isinstance(model, Transformer | EncoderDecoder) and is_on_gpu):
        raise ArgumentError(
            f"graphs need a Transformer or an EncoderDecoder on a CUDA device, and this is a "
            f"{type(model).__name__} on {model.device}: load it with device='cuda', or leave graphs out"
        )
    return model


def capture(settings: Settings, model: Any, new_graphs: Callable[[Any], Graphs], *, is_on_gpu: bool) -> Capture:
    """Capture graphs, unless the settings forbid it; without a GPU only if they ask for it.

    If the settings leave it open, an error is a reason to run without graphs, which is logged. Otherwise it is raised.
    """
    if settings.graphs is False or not (settings.graphs or is_on_gpu):
        return Capture()
    try:
        graphs = new_graphs(check_can_be_captured(model, is_on_gpu=is_on_gpu))
        why = None if graphs.captured else f"no graph fits in graph_mb={settings.graph_mb:,}: raise it"
    except Exception as error:
        if settings.graphs:
            raise
        graphs, why = None, str(error) or type(error).__name__
    if why is not None:
        log.warning("nothing is captured, and all batches run without graphs: %s", why)
    return Capture(graphs=graphs, why_none=why)
