from collections.abc import Iterator

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
