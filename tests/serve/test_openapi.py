"""The OpenAPI document is true: schemathesis sends what it allows and what it forbids to a real server."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from leafbeam.engine import Limits
from leafbeam.serve.openapi import document_of
from tests.serve.conftest import Shop
from tests.serve.running import live

pytestmark = pytest.mark.slow

load_all_checks()
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATIONS = {
    operation.definition.raw["operationId"]: operation
    for operation in (found.ok() for found in schemathesis.openapi.from_dict(document_of(Limits())).get_all_operations())
}


@pytest.fixture(scope="module")
def url(first_shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that takes changes."""
    directory = tmp_path_factory.mktemp("openapi") / "shop"
    shutil.copytree(first_shop.directory, directory)
    with live(Shop(directory=directory)) as url:
        yield url


CASES = [
    pytest.param(name, mode, id=f"{name}-{mode.value}")
    for name, operation in OPERATIONS.items()
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    # What has no body and no query cannot be wrong.
    if mode == GenerationMode.POSITIVE or operation.body or operation.query
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_no_request_fails_the_server_and_answers_are_as_documented(url: str, name: str, mode: GenerationMode) -> None:
    @settings(max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=OPERATIONS[name].as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        checks = CHECKS if mode == GenerationMode.POSITIVE else [*CHECKS, negative_data_rejection]
        case.call_and_validate(base_url=url, checks=checks, timeout=20)

    send()
