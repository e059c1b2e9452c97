"""Tokenizers and chat templates of model directories."""

import json
from pathlib import Path

import pytest

from leafbeam.errors import ArgumentError, CheckpointError
from leafbeam.text import ChatTemplate, TextGenerator, TextTokenizer
from tests.fixtures.texts import QWEN
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


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Naïve {{ 7 * 7 }} <b>?"}]
EXPECTED = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nNaïve {{ 7 * 7 }} <b>?<|im_end|>\n<|im_start|>assistant\n"
)


def save(directory: Path, config: object) -> Path:
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("template", [QWEN, [{"name": "tool_use", "template": "x"}, {"name": "default", "template": QWEN}]])
def test_messages_become_a_prompt_and_are_no_template_themselves(tmp_path: Path, template):
    chat = ChatTemplate.load(save(tmp_path, {"chat_template": template}))
    assert chat is not None
    assert chat.render(MESSAGES) == EXPECTED


def test_a_file_of_its_own_special_tokens_and_filters(tmp_path: Path):
    save(tmp_path, {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "old"})
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages | tojson }}{{ eos_token }}")
    chat = ChatTemplate.load(tmp_path)
    assert chat is not None
    assert chat.render([{"role": "user", "content": "<é>"}]) == '<s>[{"role": "user", "content": "<é>"}]</s>'


def test_it_equals_transformers(tmp_path: Path, model_dir: Path):
    transformers = pytest.importorskip("transformers")
    chat = ChatTemplate(QWEN)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(model_dir / "tokenizer.json"))
    tokenizer.chat_template = QWEN
    expected = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert chat.render(MESSAGES) == expected


def test_there_may_be_none(tmp_path: Path):
    assert ChatTemplate.load(tmp_path) is None
    assert ChatTemplate.load(save(tmp_path, {})) is None


def test_refusals_and_surprises_of_a_template_are_the_messages_fault():
    with pytest.raises(ArgumentError, match="too many"):
        ChatTemplate(QWEN).render([{"role": "user", "content": "x"}] * 102)
    with pytest.raises(ArgumentError, match="refuses these messages"):
        ChatTemplate("{{ messages[5].content.x }}").render(MESSAGES)
    with pytest.raises(ArgumentError, match="refuses these messages"):  # the sandbox
        ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}").render(MESSAGES)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "cannot be read"),
        ("[1]", "cannot be read"),
        ('{"chat_template": 7}', "expected text"),
        ('{"chat_template": "{%"}', "not a Jinja"),
    ],
)
def test_damaged_templates_are_named(tmp_path: Path, content, says):
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=says):
        ChatTemplate.load(tmp_path)
