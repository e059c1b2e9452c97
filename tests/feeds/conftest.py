"""The shop of the server's tests, a broker of Kafka and a database of PostgreSQL."""

import os
from collections.abc import Iterator

import pytest

from tests.feeds.broker import Broker
from tests.serve.conftest import first_shop, shop  # noqa: F401


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(os.environ.get("LEAFBEAM_TEST_KAFKA")) as broker:
        yield broker


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """The connection string of a PostgreSQL server with logical replication."""
    pytest.importorskip("psycopg")
    from tests.feeds.database import database

    with database() as uri:
        yield uri
