import os
import warnings
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch

from .tiny import Model, tiny_qwen3


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """These models are too small for a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def model() -> Model:
    return tiny_qwen3()


@pytest.fixture(scope="session")
def small_model() -> Model:
    """As fast as transformers gets: a generate call is a few milliseconds."""
    return tiny_qwen3(vocabulary=40, hidden=8, layers=1)


@pytest.fixture(scope="module")
def cluster() -> Generator[Any]:
    """A Ray cluster on this machine, that nothing of this user's environment changes."""
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    # A busy machine may take longer to start a process than Ray waits before it kills and starts it again.
    settings |= {f"RAY_SERVE_PROXY_{name}_CHECK_TIMEOUT_S": "100" for name in ("READY", "HEALTH")}
    settings["RAY_worker_register_timeout_seconds"] = "300"
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        import ray.data
        import ray.serve

        ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
