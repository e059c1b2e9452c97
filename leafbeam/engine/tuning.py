"""The choices that an engine measured for this machine, in the words of its log, `/readyz` and `leafbeam doctor`."""

from dataclasses import dataclass

from leafbeam.engine.precision import PrecisionReport
from leafbeam.engine.settings import Precision
from leafbeam.engine.threads import ThreadTimes
from leafbeam.model.cpu.products import ProductTuning

__all__ = ["Tuning"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """The choices of an engine, which are made once, before its first batch.

    Args:
        threads: The threads of each worker's matrix products; None before the warm-up.
        thread_times: The times of batches with each number of threads; None if there was nothing to choose.
        precision: The precision of the layers' matrix products.
        precision_report: How bfloat16 compares with float32; None if the settings did not ask for it.
        products: How the layers' matrices are multiplied; None except for a Transformer in float32 on a CPU.
    """

    threads: int | None = None
    thread_times: ThreadTimes | None = None
    precision: Precision = "float32"
    precision_report: PrecisionReport | None = None
    products: ProductTuning | None = None

    @property
    def is_measured(self) -> bool:
        """Return whether any of the choices needed a measurement."""
        is_product = self.products is not None and self.products.is_measured
        return is_product or self.thread_times is not None or self.precision_report is not None

    def lines(self) -> dict[str, str]:
        """Return each choice in words, with what was measured for it, by its name."""
        report = "" if self.precision_report is None else f"; bfloat16 is {self.precision_report}"
        found = {"precision": f"{self.precision}{report}"}
        if self.threads is not None:
            found["threads"] = str(self.threads if self.thread_times is None else self.thread_times)
        if self.products is not None:
            found["products"] = str(self.products)
        return found

    def __str__(self) -> str:
        return "; ".join(f"{name}: {words}" for name, words in self.lines().items())
