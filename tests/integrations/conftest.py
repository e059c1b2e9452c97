import pytest

from .tiny import Model, tiny_qwen3


@pytest.fixture(scope="session")
def model() -> Model:
    return tiny_qwen3()


@pytest.fixture(scope="session")
def small_model() -> Model:
    """As fast as transformers gets: a generate call is a few milliseconds."""
    return tiny_qwen3(vocabulary=40, hidden=8, layers=1)
