"""The public names of the catalog and the live index, and which packages their import needs."""

import subprocess
import sys

import pytest

import leafbeam.catalog
import leafbeam.live


@pytest.mark.parametrize("package", [leafbeam.catalog, leafbeam.live])
def test_every_public_name_can_be_imported(package):
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_duckdb_and_pyarrow_are_imported_when_a_catalog_is_used_and_not_before():
    code = (
        "import sys, leafbeam.live, leafbeam.catalog; from leafbeam.catalog import Expression, Rule, rules_from_text\n"
        "assert not {'duckdb', 'pyarrow'} & set(sys.modules)\n"
        "from leafbeam.catalog import Catalog; assert {'duckdb', 'pyarrow'} <= set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
