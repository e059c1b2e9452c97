"""examples/triton: the model of Triton's Python backend, over a stub of the module that Triton gives it.

No Triton runs here: the stub has the classes that Triton's documentation of the Python backend describes.
"""

import json
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leafbeam.engine import Request
from tests.serve.conftest import first_shop, shop  # noqa: F401

FOLDER = Path(__file__).parents[2] / "examples" / "triton" / "leafbeam"
CONFIG = (FOLDER / "config.pbtxt").read_text(encoding="utf-8")


class Tensor:
    def __init__(self, name: str, values: Any) -> None:
        assert isinstance(values, np.ndarray)
        assert values.dtype in (np.object_, np.float32, np.int32)
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._values


class TritonError(Exception):
    def message(self) -> str:
        return str(self)


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor] = field(default_factory=list[Tensor])
    error: TritonError | None = None


def inputs(*history: str, rules: list[str] | None = None, num_items: int | None = None) -> list[Tensor]:
    """The tensors of a request, as the backend hands them over: text as bytes."""
    tensors = [Tensor("history", np.array([item.encode() for item in history], np.object_))]
    tensors += [] if rules is None else [Tensor("rules", np.array([rule.encode() for rule in rules], np.object_))]
    return tensors + ([] if num_items is None else [Tensor("num_items", np.array([num_items], np.int32))])


def input_of(request: list[Tensor], name: str) -> Tensor | None:
    return next((tensor for tensor in request if tensor.name() == name), None)


@pytest.fixture
def model(shop: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:  # noqa: F811
    stub: Any = ModuleType("triton_python_backend_utils")
    stub.Tensor, stub.TritonError, stub.InferenceResponse = Tensor, TritonError, InferenceResponse
    stub.get_input_tensor_by_name = input_of
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stub)
    module = runpy.run_path(str(FOLDER / "1" / "model.py"))
    parameters = {key: {"string_value": value} for key, value in re.findall(r'key: "(\w+)" .*string_value: "([^"]*)"', CONFIG)}
    parameters["run"]["string_value"] = str(shop.directory)
    model = module["TritonPythonModel"]()
    model.initialize({"model_config": json.dumps({"parameters": parameters})})
    yield SimpleNamespace(execute=model.execute, engine=model.engine, shop=shop)
    model.finalize()


def test_a_batch_of_requests_is_answered_each_as_the_engine_answers(model: Any) -> None:
    requests = [inputs(), inputs("1003", "1050", num_items=5), inputs("1003", rules=["cheap", "in_stock"], num_items=50)]
    responses = model.execute(requests)
    allowed = model.shop.allowed(["cheap", "in_stock"], [1003])
    for response, (history, rules, num_items) in zip(
        responses, [((), (), 10), ((1003, 1050), (), 5), ((1003,), ("cheap", "in_stock"), 50)], strict=True
    ):
        assert response.error is None
        found = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors}
        expected = model.engine.submit(Request(history=history, rules=rules, num_items=num_items)).result()
        assert found["item_ids"].tolist() == [str(item).encode() for item in expected.item_ids]
        np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-5)  # of another batch
        assert found["scores"].dtype == np.float32
    assert {int(item) for item in responses[2].output_tensors[0].as_numpy()} == allowed


def test_a_request_that_is_wrong_is_an_error_of_its_own(model: Any) -> None:
    responses = model.execute([inputs("no number"), inputs(), inputs(rules=["no_rule"]), inputs(num_items=0)])
    assert [response.error is None for response in responses] == [False, True, False, False]
    assert "no_rule" in responses[2].error.message()
    assert "num_items" in responses[3].error.message()


def test_the_configuration_names_what_the_model_reads_and_returns() -> None:
    code = (FOLDER / "1" / "model.py").read_text(encoding="utf-8")
    names = re.findall(r'\{ name: "(\w+)"', CONFIG)
    assert names == ["history", "rules", "num_items", "item_ids", "scores"]
    assert all(f'"{name}"' in code for name in names)
    assert CONFIG.count("{") == CONFIG.count("}")
    assert re.search(r"^max_batch_size: 0\b", CONFIG, re.MULTILINE)
