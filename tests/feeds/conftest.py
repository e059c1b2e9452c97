"""The shop of the server's tests, and a broker of Kafka."""

from collections.abc import Iterator

import pytest

from tests.feeds.broker import Broker
from tests.serve.conftest import first_shop, shop  # noqa: F401


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker
