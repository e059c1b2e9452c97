"""The bytes of tokens, and tokenizers that do not fit."""

import json

import pytest

from leafbeam.errors import CheckpointError
from leafbeam.text import TextGenerator, TextTokenizer
from tests.text.conftest import save_model


def test_the_bytes_of_a_text_s_tokens_are_the_text(model_dir):
    tokenizer = TextTokenizer.load(model_dir)
    for text in ("a red lamp", "naïve über\n\t{}", "日本語 \U0001f600", " leading and trailing "):
        tokens = tokenizer.encode(text)
        assert b"".join(tokenizer.token_bytes[token] for token in tokens) == text.encode()
        assert tokenizer.decode(tokens) == text
    assert tokenizer.token_bytes[tokenizer.end] is None
    assert {bytes([byte]) for byte in range(256)} <= set(tokenizer.token_bytes)


def test_pieces_with_byte_fallback_have_bytes(tmp_path):
    from tokenizers import Tokenizer, decoders, models, normalizers

    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["</s>", *bytes_of, "\u2581", "a", "\u2581a", "b", "é"]
    pairs = [("\u2581", "a")]
    model = models.BPE({word: n for n, word in enumerate(words)}, pairs, byte_fallback=True, unk_token=None)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": 0}')
    found = TextTokenizer.load(tmp_path)
    for text in ("b a", "é日", "a b\n"):
        assert found.decode(found.encode(text)) == text
    assert found.token_bytes[0] is None
    assert found.end == 0


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", None, "does not exist"),
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer.json", "[" * 10_000, "cannot be read"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 2147483647}}}', "has the token 2147483647"),
        ("tokenizer.json", '{"model": 7}', "cannot be read"),
        ("generation_config.json", "[1]", "not a JSON object"),
        ("generation_config.json", '{"eos_token_id": "end"}', "expected a token"),
        ("generation_config.json", '{"eos_token_id": 99999}', "not one of the tokenizer"),
        ("generation_config.json", "{}", "names no eos_token_id"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, says):
    directory = save_model(tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    config.pop("eos_token_id", None)
    (directory / "config.json").write_text(json.dumps(config))
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content)
    with pytest.raises(CheckpointError, match=says):
        TextTokenizer.load(directory)


def test_token_ids_may_have_gaps(tmp_path):
    directory = save_model(tmp_path / "model")
    settings = json.loads((directory / "tokenizer.json").read_text())
    settings["model"]["vocab"]["<far>"] = 380
    settings["added_tokens"].append({**settings["added_tokens"][0], "id": 380, "content": "<far>", "special": False})
    (directory / "tokenizer.json").write_text(json.dumps(settings))
    tokenizer = TextTokenizer.load(directory)
    assert tokenizer.size == 381
    assert tokenizer.token_bytes[380] == b"<far>"
    assert tokenizer.token_bytes[379] is None
    assert tokenizer.encode("a<far>")[-1] == 380
    assert tokenizer.decode(tokenizer.encode("a<far>b")) == "a<far>b"


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="do not belong together"):
        TextGenerator.load(save_model(tmp_path / "small", size=300))


def test_a_tokenizer_of_words_is_refused(tmp_path):
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": 0}')
    with pytest.raises(CheckpointError, match="byte-level or byte-fallback"):
        assert TextTokenizer.load(tmp_path).token_bytes
