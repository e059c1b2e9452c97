"""Once a text service has started, no request waits for a kernel to be compiled, which takes seconds on a new machine."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from leafbeam.decode import Sampling
from leafbeam.errors import LogitsError
from leafbeam.text import TextService
from leafbeam.text.request import TextRequest
from tests.compilations import compilations, printed_alone
from tests.text.conftest import save_model

CONSTRAINTS = [
    '{"free_text": {}}',
    '{"regex": "[a-f]{3,9} (lamp|cup)"}',
    '{"choices": ["red lamp", "tea cup"]}',
    '{"json_schema": {"type": "object", "properties": {"price": {"type": "integer"}}, "required": ["price"]}}',
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_texts": 4},
    {"num_texts": 4, "scoring": "full"},
    {"sampling": Sampling(temperature=0.7)},
    {"sampling": Sampling(top_k=5, top_p=0.9), "num_texts": 3},
    {"retokenize": True},
    {"stop": ("lamp",)},
]


@pytest.mark.slow
def test_no_text_after_the_start_compiles_a_kernel():
    assert printed_alone(__name__, "compiled_late") == "[]"


def compiled_late() -> list[str]:
    """The kernels that texts of all kinds compile after the start."""
    with tempfile.TemporaryDirectory() as folder, compilations() as compiled:
        service = TextService.load(save_model(Path(folder) / "model"))
        service.start()
        assert compiled, "the start compiled nothing: does numba still call the hook?"
        compiled.clear()
        for prompt in ("A", "A red lamp and a tea cup, naïve and über."):
            tokens = service.tokenize(prompt).result()
            for constraint in CONSTRAINTS:
                automaton = service.compile(constraint).result()
                for options in OPTIONS:
                    request = TextRequest(prompt=tokens, automaton=automaton, max_tokens=24, **options)
                    service.worker.submit([request, request]).texts.result()
        service.stop()
        return list(compiled)


def test_a_model_without_finite_logits_does_not_start_and_leaves_no_process(tmp_path: Path):
    directory = save_model(tmp_path / "model")
    service = TextService.load(directory)
    with torch.no_grad():
        for weights in service.generator.model.parameters():
            weights.fill_(torch.nan)
    with pytest.raises(LogitsError):
        service.start()
    assert service.compiler._child is None
    service.stop()
