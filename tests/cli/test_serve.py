"""`leafbeam serve`: its options, words and files reach the server and the engine."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import leafbeam.serve
from leafbeam.cli import app
from leafbeam.cli.run import RunDirectory
from leafbeam.config_file import settings_of
from leafbeam.engine import Settings
from leafbeam.serve import ServerConfig


@pytest.fixture
def serve_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs `leafbeam serve` on a run with empty files and returns the arguments that the server gets."""
    here = RunDirectory(tmp_path)
    for path in (here.model, here.trie, here.catalog, here.rules):
        path.touch()
    received: dict[str, Any] = {}
    monkeypatch.setattr(leafbeam.serve, "serve", lambda *files, **options: received.update(options, files=files))
    monkeypatch.setattr("leafbeam.cli.serve.require_device", lambda device: None)
    before = signal.getsignal(signal.SIGHUP)

    def call(*words: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, ["serve", "--run", str(tmp_path), *words])
        assert result.exit_code == 0, result.output
        return received

    yield call
    signal.signal(signal.SIGHUP, before)


def test_words_and_options_reach_the_engine(serve_with: Any) -> None:
    default = serve_with()
    assert default["config"].engine == Settings(widths_file=default["changes"].parent / "search_widths.json")
    words = ("--set", "engine.prompt_store_mb=64", "--beams", "50", "--slo-ms", "200", "--set", "limits.max_deny=7")
    config = serve_with(*words, "--set", "max_body_bytes=2048", "--http-workers", "2")["config"]
    assert replace(config.engine, widths_file=None) == Settings(prompt_store_mb=64, num_beams=50, slo_s=0.2)
    assert (config.limits.max_deny, config.max_body_bytes, config.http_workers) == (7, 2048, 2)


def test_an_option_overrides_a_word_and_a_word_the_file(serve_with: Any, tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("port = 1\nhttp_workers = 1\n[engine]\nnum_beams = 10\nmax_batch = 4\n")
    config = serve_with("--config", str(path), "--set", "engine.num_beams=30", "--set", "port=2", "--port", "3")["config"]
    assert (config.port, config.http_workers, config.engine.num_beams, config.engine.max_batch) == (3, 1, 30, 4)


def test_an_option_with_the_value_of_the_default_overrides_the_file(serve_with: Any, tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("port = 1\n")
    assert serve_with("--config", str(path), "--port", "8000")["config"].port == 8000


def test_what_is_printed_is_read_again(serve_with: Any, tmp_path: Path) -> None:
    words = ["--set", "engine.threads=2", "--set", 'exposure.origins=["https://a.example"]', "--keys", str(tmp_path / "k.json")]
    words += ["--set", 'rules={cheap = "price < 20", "new@60s" = "age < \\"7\\""}', "--set", "traces=http://c:4318"]
    printed = CliRunner().invoke(app, ["serve", "--print-config", "--run", str(tmp_path), *words])
    assert printed.exit_code == 0, printed.output
    path = tmp_path / "serve.toml"
    path.write_text(printed.stdout)
    again = CliRunner().invoke(app, ["serve", "--print-config", "--config", str(path)])
    assert again.stdout == printed.stdout
    assert "threads = 2" in printed.stdout


def test_rules_of_a_file_and_of_options_join_those_of_the_run(serve_with: Any) -> None:
    files = serve_with("--set", 'rules={cheap = "price < 20", "new@60s" = "age < 7"}', "--rule", "hot=clicks > 9")["files"][1]
    assert files.rules[1] == {"cheap": "price < 20", "new": {"where": "age < 7", "refresh": "60s"}, "hot": "clicks > 9"}


def test_every_setting_says_what_it_means() -> None:
    assert [setting.name for setting in settings_of(ServerConfig) if not setting.meaning] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "engine.precision=half"), "--set: engine.precision is 'half': expected float32, bfloat16, int8 or fp8"),
        (("--set", "precision=bfloat16"), "there is no setting 'precision'; did you mean engine.precision?"),
        (("--set", "engine.max_batchs=3"), "did you mean engine.max_batch"),
        (("--set", "port"), "--set 'port': expected NAME=VALUE"),
        (("--set", "port=many"), "port is 'many': expected a whole number"),
        (("--set", "port=true"), "port is True: expected a whole number"),
        (("--set", "learn=1"), "learn is 1: expected true or false"),
        (("--set", "engine=3"), "engine is a table of settings, such as engine.num_beams, not 3"),
        (("--set", "exposure.origins=https://a"), "expected a list; each value is text"),
        (("--set", "rules={a=1}"), "expected a table of names and texts"),
        (("--set", "engine.max_batch=0"), "max_batch must be an integer of at least 1"),
        (("--set", "port=70000"), "port must be from 0"),
        (("--set", "key_rate=5"), "key_rate needs keys"),
        (("--config", "nowhere.toml"), "nowhere.toml cannot be read"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_is_loaded(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--run", str(tmp_path), *words], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"port = 1\nport = 2\n", "is not TOML: Cannot overwrite a value"),
        (b"port = \xff\n", "is not TOML"),
        (b"ports = 1\n", "there is no setting 'ports'; did you mean port"),
        (b"[engines]\nmax_batch = 1\n", "there is no setting 'engines'; did you mean engine"),
        (b"[engine]\nmax_batch = 1.5\n", "engine.max_batch is 1.5: expected a whole number"),
        (b"[host]\na = 1\n", "host is {'a': 1}: expected text"),
        (b"engine = 3\n", "engine is a table of settings, such as engine.num_beams, not 3"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_the_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["serve", "--config", str(path)], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert str(path) in " ".join(result.stderr.split())
    assert message in " ".join(result.stderr.split())


def test_settings_of_items_are_refused_for_texts_alone(tmp_path: Path) -> None:
    for words, message in (
        (("--set", "engine.precision=bfloat16"), "engine.precision needs --run"),
        (("--learn",), "learn needs --run"),
        (("--rule", "cheap=price <"), "--rule needs --run"),
        (("--port", "1", "--set", "engine.max_rows=64"), "engine.max_rows needs --run"),
    ):
        result = CliRunner().invoke(app, ["serve", "--text-model", str(tmp_path), *words], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert message in result.stderr


def test_the_index_is_verified_unless_told_otherwise(serve_with: Any) -> None:
    assert serve_with()["files"][1].verify
    assert not serve_with("--set", "verify=false")["files"][1].verify
