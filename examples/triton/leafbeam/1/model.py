"""leafbeam in Triton Inference Server's Python backend: histories to items, under rules.

Inputs: `history` (item ids as text, oldest first, of any length), and if wanted `rules` (names) and `num_items`.
Outputs: `item_ids` (text) and `scores`, best first; fewer than `num_items` if the rules allow fewer.
"""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from leafbeam.engine import CatalogFiles, Engine, Request
from leafbeam.errors import LeafbeamError


class TritonPythonModel:
    def initialize(self, args):
        """Load the run that config.pbtxt names, compile the kernels, and start the engine's workers."""
        parameters = json.loads(args["model_config"])["parameters"]
        run = Path(parameters["run"]["string_value"])
        files = CatalogFiles(index=run / "index.leafbeam", catalog=run / "catalog.duckdb", rules=run / "rules.toml")
        self.engine = Engine.load(run / "model", files, device=parameters["device"]["string_value"])
        self.engine.warm_up()
        self.engine.start()
        first = self.engine.submit(Request(num_items=1)).result().item_ids  # ids are whole numbers or text, all of them
        self.to_id = int if first and isinstance(first[0], int) else str

    def execute(self, requests):
        """Submit all requests, so that the engine batches them, and then wait for each."""
        return [self.answer(future) for future in [self.submit(request) for request in requests]]

    def finalize(self):
        self.engine.close()

    def submit(self, request):
        """Return the future of a request's result, or the error that it has instead."""
        values = {name: pb_utils.get_input_tensor_by_name(request, name) for name in ("history", "rules", "num_items")}
        texts = {name: [] if values[name] is None else decoded(values[name]) for name in ("history", "rules")}
        try:
            number = {} if values["num_items"] is None else {"num_items": int(values["num_items"].as_numpy()[0])}
            return self.engine.submit(Request(history=tuple(map(self.to_id, texts["history"])), rules=texts["rules"], **number))
        except (LeafbeamError, ValueError) as error:
            return error

    def answer(self, future):
        try:
            if isinstance(future, Exception):
                raise future
            result = future.result()
        except (LeafbeamError, ValueError) as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        ids = np.array([str(item).encode() for item in result.item_ids], dtype=np.object_)
        scores = np.array(result.scores, dtype=np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("item_ids", ids), pb_utils.Tensor("scores", scores)])


def decoded(tensor):
    """The texts of a tensor, which Triton hands over as bytes."""
    return [value.decode() for value in tensor.as_numpy().ravel().tolist()]
