"""The shop of the server's tests."""

from tests.serve.conftest import first_shop, shop  # noqa: F401
