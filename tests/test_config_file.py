"""Configs: what files and words may say, and that every other input is named."""

from pathlib import Path
from typing import Any

import pytest

from leafbeam.config_file import changes_of, load_config, to_toml
from leafbeam.errors import ArgumentError, LeafbeamError
from leafbeam.serve import ServerConfig
from leafbeam.train import Recipe, preset

LONG = "9" * 400


def loaded(*words: str, path: Path | None = None) -> dict[str, Any]:
    return changes_of(load_config(ServerConfig(), path, words))


def written(folder: Path, content: str | bytes) -> Path:
    (folder / "serve.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / "serve.toml"


@pytest.mark.parametrize(
    "word",
    [
        f"answer_s={LONG}",
        f"port={LONG}",
        f"key_rate={LONG}",
        f"answer_s=-{LONG}",
        f"engine.max_batch={2**63}",
        "max_body_bytes=-9223372036854775809",
        "run=" + "[" * 3_000,
        "engine.max_batch=" + "[" * 3_000,
        "rules=" + "{a=" * 3_000,
        "nothing=" + "[" * 3_000,
    ],
)
@pytest.mark.parametrize("in_file", [False, True])
def test_numbers_beyond_64_bits_and_deep_nesting_are_refused(tmp_path: Path, word: str, in_file: bool) -> None:
    """They ended in an OverflowError or a RecursionError."""
    with pytest.raises(ArgumentError):
        loaded(path=written(tmp_path, word)) if in_file else loaded(word)


def test_a_seed_that_the_generator_cannot_take_is_refused() -> None:
    """torch refused it after minutes of work."""
    assert load_config(preset("small"), None, (f"seed={2**63 - 1}",)).seed == 2**63 - 1
    for seed in (2**63, int("9" * 30)):
        with pytest.raises(ArgumentError, match="seed"):
            load_config(preset("small"), None, (f"seed={seed}",))
        with pytest.raises(ArgumentError, match=r"seed must be below 2\*\*63"):
            Recipe(seed=seed)


@pytest.mark.parametrize("text", ["\x7f", 'a\x7f\x00\x1f"\\', "\u0085\u2028", "\U0001f600"])
def test_every_text_that_is_printed_is_read_again(tmp_path: Path, text: str) -> None:
    """DEL was printed as it is, which TOML refuses."""
    config = ServerConfig(device=text, run=Path(f"r{text}"), rules={text: text})
    assert load_config(ServerConfig(), written(tmp_path, to_toml(config))) == config


def test_half_a_surrogate_pair_is_refused_where_it_would_be_printed() -> None:
    for config in (ServerConfig(device="a\ud800"), ServerConfig(run=Path("\udcff")), ServerConfig(rules={"\ud800": "x"})):
        with pytest.raises(ArgumentError, match="is not valid Unicode, so TOML cannot hold it"):
            to_toml(config)


@pytest.mark.parametrize("word", ["engine=3", "engine=x", "engine=[]", "engine=[{max_batch=3}]", "limits=true"])
def test_a_table_of_settings_is_named_as_such(tmp_path: Path, word: str) -> None:
    for path, words in ((None, (word,)), (written(tmp_path, word.replace("=x", '="x"')), ())):
        with pytest.raises(ArgumentError, match=r"(engine|limits) is a table of settings, such as (engine|limits)\.\w+, not"):
            loaded(*words, path=path)


def test_a_table_is_set_by_one_word() -> None:
    assert loaded("engine={max_batch=3}", "engine.num_beams=7") == {"engine.max_batch": 3, "engine.num_beams": 7}


@pytest.mark.parametrize("content", ["[engin]\nmax_batch = 1", "[Engine]\nmax_batch = 1", "engines = {max_batch = 1}"])
def test_a_table_that_is_called_nearly_so_is_suggested(tmp_path: Path, content: str) -> None:
    with pytest.raises(ArgumentError, match="did you mean engine"):
        loaded(path=written(tmp_path, content))


@pytest.mark.parametrize(
    ("word", "entry"),
    [
        ("rules.cheap=price < 3", ("cheap", "price < 3")),
        ('rules.cheap="price < 3"', ("cheap", "price < 3")),
        ("rules.cheap=7", ("cheap", "7")),
        ("rules.fresh@60s=seen = 'a'", ("fresh@60s", "seen = 'a'")),
        ("rules.old=stock = 1", ("old", "stock = 1")),
    ],
)
def test_a_word_sets_an_entry_of_a_table_of_texts(tmp_path: Path, word: str, entry: tuple[str, str]) -> None:
    """The other entries stay."""
    path = written(tmp_path, '[rules]\nold = "stock > 0"\n')
    assert loaded(word, path=path) == {"rules": {"old": "stock > 0", **dict([entry])}}
    assert loaded(path=written(tmp_path, '"rules.cheap" = "x"')) == {"rules": {"cheap": "x"}}


@pytest.mark.parametrize("text", ["2026", "1", "1.5", "true", "2026-11-29", "nan", "0x10", "2026-11-29T10:00:00"])
def test_texts_of_settings_need_no_quotes_even_if_they_are_numbers(text: str) -> None:
    changes = loaded(f"run={text}", f"host={text}", f"traces={text}", f"keys={text}")
    assert changes == {"run": Path(text), "host": text, "traces": text, "keys": Path(text)}


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert loaded(path=written(tmp_path, b"\xef\xbb\xbfport = 3\n")) == {"port": 3}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('"engine.max_batch" = 3\n[engine]\nmax_batch = 4\n', ()),
        ("", ("port=1", "port=2")),
        ("", ("port=1", " port = 1")),
        ("", ("engine.max_batch=1", "engine={max_batch=2}")),
        ("", ("rules.a=x", "rules.a=y")),
    ],
)
def test_a_name_twice_in_one_source_is_refused(tmp_path: Path, content: str, words: tuple[str, ...]) -> None:
    """The later of the two was silently taken."""
    with pytest.raises(ArgumentError, match="is set twice: keep one of the two"):
        loaded(*words, path=written(tmp_path, content))


@pytest.mark.parametrize(
    "word",
    [
        "rule_timeout_s=nan",
        "rule_timeout_s=-1",
        "rule_timeout_s=0",
        "rule_timeout_s=86401",
        "refresh=abc",
        "refresh=",
        "refresh=1ms",
        "http_workers=-3",
        "http_workers=65",
    ],
)
def test_what_the_server_would_refuse_is_refused_when_it_is_set(word: str) -> None:
    """`--print-config` printed it."""
    name, _, _ = word.partition("=")
    with pytest.raises(LeafbeamError, match=name):
        loaded(word)
