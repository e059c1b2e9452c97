"""Texts that grow at different paces, and change their last tokens, equal whole passes of the model over each."""

import numpy as np
import pytest
import torch

from leafbeam.errors import ArgumentError
from leafbeam.model import ModelConfig, TextSession, TextTokens, Transformer

SIZE = 61
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14]]


@pytest.fixture(
    scope="module",
    params=[torch.float32, torch.float64, torch.bfloat16],
    ids=["cpu runner", "torch modules", "matrices of bfloat16"],
)
def model(request: pytest.FixtureRequest) -> Transformer:
    config = ModelConfig(
        vocab_size=SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=1024,
    )  # fmt: skip
    model = Transformer(config, TextTokens(size=SIZE, num_tokens=1), torch.Generator().manual_seed(1))
    if request.param == torch.bfloat16:
        return model.bfloat16().float().store_bfloat16().eval()
    return model.to(request.param).eval()


def started(model: Transformer, *, num_texts: int = 1, max_tokens: int = 400) -> TextSession:
    longest = max(map(len, PROMPTS))
    tokens_BT = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in PROMPTS])
    lengths_B = torch.tensor([len(prompt) for prompt in PROMPTS])
    return model.start_texts(tokens_BT, lengths_B, num_texts=num_texts, max_tokens=max_tokens)


def whole(model: Transformer, prompt: list[int], text: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([[*prompt, *text]]))[0, -1]


@pytest.mark.parametrize("num_texts", [1, 2])
def test_texts_grow_by_as_many_tokens_as_each_has(model: Transformer, num_texts: int):
    rng, session = np.random.default_rng(0), started(model, num_texts=num_texts)
    texts: list[list[int]] = [[] for _ in range(len(PROMPTS) * num_texts)]
    for call in range(9):
        waits = rng.random(len(texts)) < (0.3 if call else 0.0)
        for text, waiting in zip(texts, waits, strict=True):
            if call and not waiting:
                if rng.random() < 0.3:  # some of the last tokens change, or go
                    del text[max(0, len(text) - int(rng.integers(1, 4))) :]
                text.extend(rng.integers(0, SIZE, rng.integers(0, 8)).tolist())
        hidden_RD = session.hidden_after([None if waiting else text for text, waiting in zip(texts, waits, strict=True)])
        assert hidden_RD.shape == (len(texts), 32)
        for number, (text, waiting) in enumerate(zip(texts, waits, strict=True)):
            if not waiting:
                wanted = whole(model, PROMPTS[number // num_texts], text)
                torch.testing.assert_close(hidden_RD[number], wanted, atol=1e-4, rtol=1e-4)


def test_more_new_tokens_than_a_chunk_holds(model: Transformer):
    rng, session = np.random.default_rng(1), started(model)
    texts = [rng.integers(0, SIZE, count).tolist() for count in (300, 1, 350)]
    for _ in range(2):
        hidden_RD = session.hidden_after(texts)
        for prompt, text, hidden_D in zip(PROMPTS, texts, hidden_RD, strict=True):
            torch.testing.assert_close(hidden_D, whole(model, prompt, text), atol=1e-3, rtol=1e-3)
        texts = [[*text, 3] for text in texts]


def test_a_text_may_fill_its_room_and_the_model_s_positions(model: Transformer):
    for max_tokens in (4, 1018) if model.takes_workspace else (4,):
        text = (list(range(SIZE)) * 20)[:max_tokens]
        session = started(model, max_tokens=max_tokens)
        for end in (3, max_tokens):
            hidden_RD = session.hidden_after([None, text[:end], text[:end]])
        torch.testing.assert_close(hidden_RD[2], whole(model, PROMPTS[2], text), atol=1e-3, rtol=1e-3)


def test_what_a_session_cannot_run_is_named(model: Transformer):
    session = started(model, max_tokens=4)
    with pytest.raises(ArgumentError, match="2 texts: expected 3"):
        session.hidden_after([[1], [2]])
    with pytest.raises(ArgumentError, match="5 tokens: the session began with max_tokens=4"):
        session.hidden_after([[1] * 5, [2], None])
    for wrong in (-1, SIZE):
        with pytest.raises(ArgumentError, match="got one outside"):
            session.hidden_after([[wrong], [2], None])
    with pytest.raises(ArgumentError, match="positions"):
        started(model, max_tokens=1020)
    torch.testing.assert_close(session.hidden_after([[1], [], None])[0], whole(model, PROMPTS[0], [1]), atol=1e-4, rtol=1e-4)
