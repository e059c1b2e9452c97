"""A chat template of the model makes the prompt, as transformers does, and its refusals are named."""

import json
from pathlib import Path

import pytest

from leafbeam.errors import ArgumentError, CheckpointError
from leafbeam.text import ChatTemplate
from tests.fixtures.texts import QWEN

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
def test_damaged_files_are_named(tmp_path: Path, content, says):
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=says):
        ChatTemplate.load(tmp_path)
