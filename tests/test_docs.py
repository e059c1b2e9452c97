"""Documents: their code runs, their commands, links, names and numbers exist, and their prose is plain."""

import contextlib
import importlib
import inspect
import io
import json
import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import typer
import yaml
from markdown.extensions.toc import slugify

import leafbeam
from benchmarks.gpu.parts import PARTS
from leafbeam import Trie, decode, errors, index
from leafbeam.catalog import Catalog
from leafbeam.catalog.rule_config import read_rules
from leafbeam.cli.app import app
from leafbeam.cli.demo import demo
from leafbeam.config_file import load_config
from leafbeam.datasets import make_shop
from leafbeam.engine import COUNTERS, Engine, Settings
from leafbeam.model import Vocabulary
from leafbeam.serve import Metrics, ServerConfig
from leafbeam.serve.catalog_schema import BoostBody, ItemBody, RollbackBody, RuleBody, SnapshotBody
from leafbeam.serve.engine_routes import request_of
from leafbeam.serve.schema import ModelBody, RecommendAnswer, RecommendBody
from tests import prose
from tests.fixtures.documents import README
from tests.fixtures.shops import small_model

ROOT = prose.ROOT
DOCS = ROOT / "docs"
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
PAGES = [path.relative_to(ROOT).as_posix() for path in prose.pages()]
SLOW = {"docs/how-to/jax.md"}
LOG_PAGES = [path.relative_to(ROOT).as_posix() for path in sorted(prose.LOG.glob("*.md"))]
_BLOCK = re.compile(
    r"^(?:<!-- compile only: (?P<reason>.+?) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+?)\s*$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_SHELL = ("bash", "sh", "shell", "console")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[dict[str, str]]:
    """reason, language, code and `where` (page:line of its first line) of each block of a page."""
    text = read(page)
    return [
        {**match.groupdict(default=""), "where": f"{page}:{text.count(chr(10), 0, match.start('code')) + 1}"}
        for match in _BLOCK.finditer(text)
    ]


def pages_with(language: str) -> list[str]:
    return [page for page in PAGES if any(block["language"] == language for block in blocks(page))]


def commands(page: str) -> Iterator[list[str]]:
    """The words of every command line in the blocks of a page, comments and continuations removed."""
    for block in blocks(page):
        if block["language"] in _SHELL:
            for line in block["code"].replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield words[1:] if words[0] == "$" else words


# Python.


def marked(page: str) -> Any:
    """A page as a parameter; pages whose examples compile for a minute are slow."""
    return pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page


@pytest.mark.parametrize("page", [marked(page) for page in pages_with("python") if page != "README.md"])
def test_the_python_of_a_page_runs_and_prints_what_it_shows(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page}
    found = blocks(page)
    for number, block in enumerate(found):
        if block["language"] != "python":
            continue
        line = int(block["where"].rpartition(":")[2])
        code = compile("\n" * (line - 1) + block["code"], str(ROOT / page), "exec")  # a traceback names the page's line
        if block["reason"]:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        following = found[number + 1] if number + 1 < len(found) else None
        if following is not None and following["language"] == "":  # `...` stands for anything
            expected = ".*".join(re.escape(part) for part in following["code"].split("..."))
            assert re.fullmatch(expected, printed.getvalue(), re.DOTALL), f"{following['where']}: prints:\n{printed.getvalue()}"


# Commands.


def check_command(words: list[str]) -> None:
    """Raise if the command line does not exist."""
    group: Any = typer.main.get_command(app)
    words = words[: words.index(">")] if ">" in words else words
    if words[0].startswith("-"):
        group.make_context("leafbeam", words, resilient_parsing=True)
    elif words[0] in group.commands:
        group.commands[words[0]].make_context(words[0], words[1:])
    else:
        raise LookupError(f"no such command: {words[0]}")


@pytest.mark.parametrize("page", [page for page in PAGES if any(words[0] == "leafbeam" for words in commands(page))])
def test_the_commands_of_a_page_exist(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in commands(page):
        if words[0] == "leafbeam" and "--help" not in words:
            try:
                check_command(words[1:])
            except Exception as error:
                pytest.fail(f"{page}: {shlex.join(words)}: {getattr(error, 'message', error)}")


def test_a_command_that_does_not_exist_is_found() -> None:
    for line in ("serve --no-such-option", "no-such-command", "train --minutes many", "make-shop --items 3"):
        with pytest.raises(Exception, match=r"(?i)no such|valid|missing"):
            check_command(line.split())


def test_make_targets_and_options_in_the_text_exist() -> None:
    targets = set(re.findall(r"^([\w./-]+):", read("Makefile"), re.MULTILINE))
    commands_ = list[Any]()
    found_groups: list[Any] = [typer.main.get_command(app)]
    while found_groups:
        commands_.append(one := found_groups.pop())
        found_groups += getattr(one, "commands", {}).values()
    options = {flag for one in commands_ for parameter in one.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    for page in PAGES:
        for code in _CODE.findall(prose.without(prose._FENCE, read(page))):
            if found := re.fullmatch(r"make ([a-z-]+)(?: \w+=.*)?", code):
                assert found[1] in targets, f"{page}: `{code}` is no target of the Makefile"
            if (found := re.fullmatch(r"(?:leafbeam [a-z-]+ )?(--[a-z][a-z-]*)(?:[ =].*)?", code)) and "index.md" not in page:
                assert found[1] in {*options, "--help"} or "benchmarks" in read(page), f"{page}: no command has {found[1]}"


def test_requests_rules_and_json_of_the_pages_are_valid(tmp_path: Path) -> None:
    checked = 0
    for page in PAGES:
        for words in commands(page):
            if words[0] == "curl" and "-d" in words:
                url, body = next(word for word in words if "/v1/" in word), words[words.index("-d") + 1]
                kinds = {"recommend": RecommendBody, "items": ItemBody, "rules": RuleBody, "boosts": BoostBody}
                kinds |= {"catalog/snapshot": SnapshotBody, "catalog/rollback": RollbackBody, "model/reload": ModelBody}
                found = msgspec.json.decode(body, type=next(kinds[name] for name in kinds if f"/v1/{name}" in url))
                if isinstance(found, RecommendBody):
                    request_of(found)
                checked += 1
        for block in blocks(page):
            if block["language"] == "toml":
                path = tmp_path / "rules.toml"
                path.write_text(block["code"])
                if block["code"].startswith("# serve.toml"):
                    assert load_config(ServerConfig(), path) != ServerConfig(), page
                    continue
                rules, failures = read_rules(path, refresh=None)
                assert rules, page
                assert not failures, page
            if block["language"] == "json":
                json.loads(block["code"])
            if block["language"] == "yaml":
                assert yaml.safe_load(block["code"]), page
    assert checked >= 2


# Links and names.


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as mkdocs makes them, and of the objects that the API page documents."""
    text = prose.without(_BLOCK, read(page))
    found: set[str] = set()
    for heading in _HEADING.findall(text):
        base = slug = slugify(re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading), "-")
        number = 1
        while slug in found:
            slug, number = f"{base}_{number}", number + 1
        found.add(slug)
    return found | set(re.findall(r"^::: ([\w.]+)", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES + LOG_PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = prose.without(_BLOCK, read(page))
    for match in _LINK.finditer(text):
        link, where = match[1], f"{page}:{text.count(chr(10), 0, match.start()) + 1}"
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{where}: {link} leads nowhere"
        if page.startswith("docs/"):
            assert DOCS in path.resolve().parents, f"{where}: {link} leaves docs/, which the built site does not have"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path.resolve().relative_to(ROOT).as_posix()), f"{where}: {link}: there is no such heading"


def resolve(name: str) -> object:
    """What a dotted name of leafbeam stands for. Raises ImportError or AttributeError."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


@pytest.mark.parametrize("page", PAGES)
def test_names_of_leafbeam_in_the_text_exist(page: str) -> None:
    for code in _CODE.findall(prose.without(prose._FENCE, read(page))):
        found = re.fullmatch(r"(leafbeam(?:\.[A-Za-z_]\w*)+)(?:\(.*\))?", code)
        if found and not code.endswith((".json", ".sha256")):
            resolve(found[1])


def test_paths_of_the_checkout_in_the_text_exist() -> None:
    """Whole paths, and ends of paths such as `ops/backend.py`."""
    roots = ("leafbeam", "tests", "benchmarks", "examples")
    files = [f"/{path.relative_to(ROOT).as_posix()}" for name in roots for path in (ROOT / name).rglob("*.py")]
    for page in PAGES:
        for code in _CODE.findall(prose.without(prose._FENCE, read(page))) if page != "CHANGELOG.md" else ():
            if re.fullmatch(rf"(?:{'|'.join(roots)})(?:/[\w.-]+)+/?", code):
                assert (ROOT / code).exists(), f"{page}: `{code}` is not there"
            elif re.fullmatch(r"[\w-]+(?:/[\w-]+)+\.py", code):
                assert any(file.endswith(f"/{code}") for file in files), f"{page}: no file is called `{code}`"


def test_the_api_page_documents_what_the_packages_export() -> None:
    documented = set(re.findall(r"^::: ([\w.]+)", read("docs/reference/api.md"), re.MULTILINE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's imports
        assert [name for name in documented if not inspect.getdoc(resolve(name))] == []
    public = {f"leafbeam.{package}.{name}" for package in ("index", "decode", "live", "automata") for name in _classes(package)}
    assert public <= documented, f"docs/reference/api.md lacks {sorted(public - documented)}"


def _classes(package: str) -> list[str]:
    """Public classes of a package that a user makes or gets."""
    module = importlib.import_module(f"leafbeam.{package}")
    return [name for name in module.__all__ if inspect.isclass(getattr(module, name)) and name not in ("Bitmap", "Segment")]


# Tables that repeat the code.


def rows_of(page: str, heading: str) -> dict[str, list[str]]:
    """First column (without backticks) -> the others, of the table under a heading."""
    section = re.split(r"^#+ ", read(page).split(f"# {heading}\n", 1)[1], flags=re.MULTILINE)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[1:] for cells in rows}


def test_fields_of_the_http_interface_are_those_of_the_code() -> None:
    def names(heading: str) -> set[str]:
        return {name for cell in rows_of("docs/reference/http.md", heading) for name in re.split(r"`?, `?", cell)}

    assert names("Request") == set(RecommendBody.__struct_fields__)
    assert names("Answer") == set(RecommendAnswer.__struct_fields__)


def metric_names() -> set[str]:
    """The metrics of a server with rules and a prompt store, without `leafbeam_`; and those of graphs, which need a GPU."""
    trie = Trie.build([[0, 1], [1, 0]], codebook_sizes=[2, 2], item_ids=["a", "b"])
    model = small_model(Vocabulary(codebook_sizes=(2, 2)))
    with Catalog.in_memory(pa.table({"item_id": ["a", "b"]}), trie, {"all": "true"}) as catalog:
        page = Metrics(Engine(model, catalog, settings=Settings(prompt_store_mb=1))).page().decode()
    names = set(re.findall(r"^# TYPE leafbeam_(\w+?)(?:_created)? ", page, re.MULTILINE))
    return {name.removesuffix("_total") for name in names} | {"graphs_captured", "graph_bytes"}


def test_metrics_reasons_and_errors_are_those_of_the_code() -> None:
    page = read("docs/reference/metrics-and-errors.md")
    documented = set(re.findall(r"`(\w+?)(?:_total)?(?:\{\w+\})?`", "".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE))))
    assert sorted(metric_names() - documented) == [], "docs/reference/metrics-and-errors.md lacks metrics of the code"
    reasons = {reason for name in COUNTERS if name != "graphs" for reason in COUNTERS[name].reasons}
    assert [reason for reason in reasons if f'"{reason}"' not in page and f"`{reason}`" not in page] == []
    assert [name for name in errors.__all__ if f"`{name}`" not in page and name != "LeafbeamError"] == []


def test_parts_for_a_gpu_have_rows_or_are_listed_as_not_measured_with_their_goals() -> None:
    page, heading = "docs/results/speed.md", "Not measured on a GPU"
    rows = rows_of(page, heading)
    listed = {name for cell in rows for name in re.split("`?, `?", cell)}
    measured = [json.loads(row)["parameters"]["what"] for row in read("benchmarks/results/gpu.jsonl").splitlines()]
    assert listed <= set(PARTS)
    for name, part in PARTS.items():
        assert name in listed or any(what.startswith(name) for what in measured), f"{page} does not list {name}"
        assert part.goal in read(page).split(f"# {heading}\n")[1]


def test_the_citation_and_the_hooks_are_those_of_the_project() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert (citation["title"].split(":")[0], citation["version"]) == ("leafbeam", leafbeam.__version__)
    hooks = [hook for repo in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"] for hook in repo["hooks"]]
    assert {hook["id"] for hook in hooks} == {"ruff", "ruff-format", "lint-imports", "prose"}
    for hook in hooks:
        tool, *arguments = hook["entry"].split()
        assert tool.startswith(".venv/bin/")
        assert any(
            f"$(BIN)/{tool.removeprefix('.venv/bin/')} {' '.join(arguments[:1])}".strip() in line for line in MAKEFILE
        ), hook


# The site and the prose.


class _Loader(yaml.SafeLoader):
    """mkdocs.yml without the tags of its plugins."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def test_every_page_is_in_the_navigation() -> None:
    def leaves(node: Any) -> Iterator[str]:
        for value in node.values() if isinstance(node, dict) else node:
            if isinstance(value, str):
                yield value
            else:
                yield from leaves(value)

    nav = list(leaves(yaml.load(read("mkdocs.yml"), _Loader)["nav"]))
    assert sorted(nav) == sorted(page.removeprefix("docs/") for page in PAGES if page.startswith("docs/"))


def test_the_prose_is_plain() -> None:
    assert prose.problems() == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("The photograph of the rules.\n", "'photograph': write snapshot"),
        ("Say it.\n\n`FilterShelf` holds filters.\n", "page.md:3: 'FilterShelf': write FilterCache"),
        ("The server " + "and the client " * 15 + "run.\n", "words in the sentence"),
        ("The server applies considerable organisational complexity. " * 12 + "\n", "reading ease"),
    ],
)
def test_the_prose_linter_finds(text: str, problem: str) -> None:
    terms = prose.read_terms(prose.TERMS.read_text(encoding="utf-8"))
    assert any(problem in found for found in prose.problems_in("page.md", text, terms))


def test_the_prose_linter_ignores_code_and_figures() -> None:
    terms = prose.read_terms(prose.TERMS.read_text(encoding="utf-8"))
    text = "A label is `wedged`.\n\n```\nnobody\n```\n\n<!-- figure: x -->\n\nnobody\n\n<!-- end figure -->\n"
    assert list(prose.problems_in("page.md", text, terms)) == []


def test_the_tests_that_guarantees_name_exist() -> None:
    page = (DOCS / "explanation" / "guarantees.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| promise"))]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(tests/[^`]+)`", row)
        assert named, row
        for path in named:
            assert "\ndef test_" in (ROOT / path).read_text(encoding="utf-8"), path


def test_the_pictures_of_the_page_are_small_and_have_a_command() -> None:
    pictures = sorted((prose.ROOT / "docs" / "img").glob("*.png"))
    script = (prose.ROOT / "docs" / "screenshots.py").read_text(encoding="utf-8")
    assert pictures
    assert all(f'name="{picture.stem}"' in script for picture in pictures)
    assert sum(picture.stat().st_size for picture in pictures) <= 600_000


def test_the_drawings_are_those_of_their_script() -> None:
    from docs import drawings

    pages = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("explanation/*.md"))
    assert {path.name for path in (DOCS / "img").glob("*.svg")} == set(drawings.DRAWINGS)
    for name, draw in drawings.DRAWINGS.items():
        assert (DOCS / "img" / name).read_text(encoding="utf-8") == draw(), "run `make generated`"
        assert f"../img/{name})" in pages


def test_the_ten_line_example_prints_what_the_readme_says() -> None:
    code, output = re.findall(r"```(?:python)?\n(.*?)```", README.split("## Ten lines")[1], re.DOTALL)[:2]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == output


def test_the_request_of_the_readme_is_about_the_shop_of_the_demo() -> None:
    defaults = {name: parameter.default for name, parameter in inspect.signature(demo).parameters.items()}
    shop = make_shop(num_items=defaults["items"], num_users=defaults["users"], seed=defaults["seed"])
    items = {item["item_id"]: item for item in shop.items.to_pylist()}
    section = README.split("## A request")[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if re.match(r"\|.*\| P\d", line)
    ]
    assert all(title == items[item_id]["title"] for _, item_id, title, *_ in cells)
    request, answer = re.search(r"-d '(.*)'", section), json.loads(section.split("```json")[1].split("```")[0])
    assert request is not None
    assert [item_id for _, item_id, *_ in cells] == json.loads(request[1])["history"] + answer["item_ids"]
    shown = [(float(price), int(stock)) for *_, price, stock in cells[-len(answer["item_ids"]) :]]
    assert shown == [(items[item_id]["price"], items[item_id]["stock"]) for item_id in answer["item_ids"]]
    assert all(price < 20 and stock > 0 for price, stock in shown)


def test_the_public_surface_is_what_all_says() -> None:
    for module in (leafbeam, decode, errors, index):
        assert all(hasattr(module, name) for name in module.__all__), module.__name__
    search = {"BeamSearch", "Filter", "LeafbeamError", "Sampler", "SearchResult", "Trie"}
    assert set(leafbeam.__all__) == search | {"AsyncClient", "Client", "generate"}
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert classes == set(errors.__all__)
    assert all(name in (errors.__doc__ or "") for name in classes)
