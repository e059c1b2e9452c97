"""A small real shop behind HTTP: random weights, an index, a catalog in DuckDB with its rules file."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from leafbeam.index import Trie
from leafbeam.model import Vocabulary
from tests.fixtures.shops import small_model, write_shop
from tests.fixtures.texts import QWEN
from tests.text.conftest import save_model

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from leafbeam.engine import Engine
    from leafbeam.serve import Server

# pytest keeps a conftest to the very end of the process; DuckDB, reachable from it then, would complain of leaks.

SIZES = (8, 16)
TEXT_MODEL = "tiny-lm"
RULES = "[rules]\ncheap = 'price < 20'\nin_stock = 'stock > 0'\nnone = 'price > 1e9'\n"
MEANING: dict[str, Callable[[int], bool]] = {
    "cheap": lambda item: item % 40 < 20,
    "in_stock": lambda item: item % 3 > 0,
    "none": lambda item: False,
}


@dataclass(frozen=True, kw_only=True)
class Shop:
    """Items 1000 to 1099; price is id % 40, stock id % 3. The files of a server, and what the rules mean."""

    directory: Path
    item_ids: tuple[int, ...] = field(default=tuple(range(1000, 1100)), repr=False)

    def allowed(self, rules: list[str], deny: list[Any]) -> set[int]:
        return {one for one in self.item_ids if all(MEANING[rule](one) for rule in rules)} - {
            one for one in deny if isinstance(one, int)
        }

    @property
    def files(self) -> tuple[Path, Path, Path, Path]:
        """Model, index, catalog, rules."""
        return tuple(self.directory / name for name in ("model", "index.leafbeam", "catalog.duckdb", "rules.toml"))  # type: ignore[return-value]

    @property
    def memory(self) -> Path:
        """Of an item memory, where a test saves one."""
        return self.directory / "memory.leafbeam"

    def engine(self, **options: Any) -> "Engine":
        from leafbeam.engine import CatalogFiles, Engine

        model, index, catalog, rules = self.files
        return Engine.load(model, CatalogFiles(index=index, catalog=catalog, rules=rules), **options)


@pytest.fixture(scope="session")
def first_shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = Shop(directory=tmp_path_factory.mktemp("serve"))
    rng = np.random.default_rng(5)
    codes_NL = np.stack([rng.integers(0, size, len(shop.item_ids)) for size in SIZES], axis=1)
    model = small_model(Vocabulary(codebook_sizes=SIZES), seed=2, max_position_embeddings=64, initializer_range=0.5)
    rows = [{"item_id": one, "title": f"thing {one}", "price": one % 40, "stock": one % 3} for one in shop.item_ids]
    trie = Trie.build(codes_NL, SIZES, item_ids=list(shop.item_ids))
    write_shop(shop.directory, model, trie, pa.Table.from_pylist(rows), RULES)
    return shop


@pytest.fixture
def shop(first_shop: Shop, tmp_path: Path) -> Shop:
    """A shop of the test's own, to change."""
    shutil.copytree(first_shop.directory, tmp_path / "shop")
    return Shop(directory=tmp_path / "shop")


@pytest.fixture(scope="module")
def client(first_shop: Shop) -> "Iterator[TestClient]":
    """A client of a shop that nobody changes."""
    from starlette.testclient import TestClient

    from leafbeam.serve import create_app

    with TestClient(create_app(first_shop.engine())) as client:
        yield client


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that it signed itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "certificate.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    words += ["-subj", "/CN=shop", "-addext", "subjectAltName=IP:127.0.0.1", "-out", str(files[0]), "-keyout", str(files[1])]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return files


@pytest.fixture(scope="session")
def text_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a language model with a chat template."""
    directory = save_model(tmp_path_factory.mktemp("serve-text") / TEXT_MODEL)
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": QWEN}))
    return directory


@pytest.fixture(scope="module")
def text_server(first_shop: Shop, text_dir: Path) -> "Iterator[Server]":
    """A server of a shop and of a language model, in a thread."""
    from leafbeam.text import CompileLimits, TextService, TextSettings
    from tests.serve.running import thread

    settings = TextSettings(max_queue=4, max_rows=8, max_tokens=4000, timeout_s=30)
    text = TextService.load(text_dir, settings=settings, limits=CompileLimits(max_seconds=3, max_mb=512))
    with thread(first_shop.engine(), text=text) as server:
        yield server


@pytest.fixture
def text_http(text_server: "Server") -> Iterator[httpx.Client]:
    with httpx.Client(base_url=text_server.url, timeout=30) as client:
        yield client
