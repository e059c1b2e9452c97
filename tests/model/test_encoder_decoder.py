"""The encoder-decoder: its layers against transformers' T5, its decoding steps against its own teacher-forced pass."""

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from leafbeam.decode import BeamSearch
from leafbeam.errors import ArgumentError, CheckpointError
from leafbeam.files import CHECKSUMS
from leafbeam.index import Trie
from leafbeam.model import EncoderDecoder, EncoderDecoderConfig, TokenTable, Transformer, Vocabulary, load_model

MakeModel = Callable[..., EncoderDecoder]
Paths = list[list[tuple[int, ...]]]  # of each request, of each beam: the codes so far
VOCABULARY = Vocabulary(codebook_sizes=(16, 12, 9, 5))


@pytest.fixture
def make_model(generator: torch.Generator) -> MakeModel:
    """Small models whose weights, norms included, are far from where they start, so that a wrong formula shows."""

    def make(vocabulary: Vocabulary | TokenTable = VOCABULARY, **fields: object) -> EncoderDecoder:
        sizes: dict[str, object] = {
            "vocab_size": vocabulary.size,
            "d_model": 24,
            "d_kv": 10,
            "d_ff": 40,
            "num_heads": 3,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 20,
            "max_position_embeddings": 64,
        }
        model = EncoderDecoder(EncoderDecoderConfig(**(sizes | fields)), vocabulary, generator).eval()  # type: ignore[arg-type]
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5, generator=generator)
        return model

    return make


def prompts(generator: torch.Generator, size: int = 4, length: int = 11) -> tuple[Tensor, Tensor]:
    """Random ragged prompts, the shortest a lone token, whose padding is arbitrary tokens."""
    tokens = torch.randint(0, VOCABULARY.size, (size, length), generator=generator)
    lengths = torch.randint(1, length + 1, (size,), generator=generator)
    lengths[0], lengths[-1] = length, 1
    return tokens, lengths


def alone(model: EncoderDecoder, tokens_BT: Tensor, lengths_B: Tensor, paths: Paths) -> Tensor:
    """Logits (B, K, V) of the next level by running every beam's prompt and codes by themselves, nothing padded or cached."""
    rows: list[Tensor] = []
    for request, beams in enumerate(paths):
        prompt = tokens_BT[request, : int(lengths_B[request])]
        for beam in beams:
            target = [int(model.vocabulary.tokens_at(torch.tensor(code), t)) for t, code in enumerate(beam)]
            with torch.no_grad():
                hidden = model(prompt[None], torch.tensor([target], dtype=torch.int64))
                rows.append(model.head(hidden[0, -1], len(beam)))
    return torch.stack(rows).view(len(paths), len(paths[0]), -1)


@pytest.mark.parametrize("fields", [{}, {"num_experts": 4, "feed_forward_proj": "gated-silu"}, {"tie_word_embeddings": False}])
@pytest.mark.parametrize("widths", [(5, 5, 5), (3, 8, 2)])
def test_steps_equal_each_beam_run_alone(
    make_model: MakeModel, generator: torch.Generator, poisoned: None, widths: tuple[int, ...], fields: dict[str, object]
):
    model = make_model(**fields)
    tokens_BT, lengths_B = prompts(generator)
    session = model.start(tokens_BT, lengths_B)
    paths: Paths = [[()] for _ in lengths_B]
    logits = session.step_fn(None, None)
    torch.testing.assert_close(logits[:, None], alone(model, tokens_BT, lengths_B, paths), atol=1e-5, rtol=0)
    for level, width in enumerate(widths):
        shape = (len(lengths_B), width)
        codes = torch.randint(0, VOCABULARY.codebook_sizes[level], shape, generator=generator)
        parents = torch.randint(0, len(paths[0]), shape, generator=generator)
        paths = [[(*paths[b][int(parents[b, k])], int(codes[b, k])) for k in range(width)] for b in range(shape[0])]
        logits = session.step_fn(codes, parents)
        assert logits.is_inference()
        torch.testing.assert_close(logits, alone(model, tokens_BT, lengths_B, paths), atol=1e-5, rtol=0)


@pytest.mark.parametrize("taken", [0, 1, 2])
@pytest.mark.parametrize("fresh", [True, False])
def test_suffixes_in_one_pass_equal_single_steps(make_model: MakeModel, generator: torch.Generator, taken: int, fresh: bool):
    model = make_model(num_experts=3)
    tokens_BT, lengths_B = prompts(generator)
    one, many = model.start(tokens_BT, lengths_B), model.start(tokens_BT, lengths_B)
    for session in (one, many):
        if not fresh:  # a caller that knows the logits of level 0 may skip this call
            session.step_fn(None, None)
    width = 1
    for level in range(taken):
        codes = torch.randint(0, VOCABULARY.codebook_sizes[level], (4, 5), generator=generator)
        parents = torch.randint(0, width, codes.shape, generator=generator)
        for session in (one, many):
            session.step_fn(codes, parents)
        width = 5
    sizes = VOCABULARY.codebook_sizes[taken:-1]
    codes_BKT = torch.stack([torch.randint(0, size, (4, 6), generator=generator) for size in sizes], 2)
    parents = torch.randint(0, width, (4, 6), generator=generator)
    own = torch.arange(6).expand(4, 6)
    expected = [many.step_fn(codes_BKT[:, :, t], parents if t == 0 else own) for t in range(len(sizes))]
    for mine, truth in zip(one.suffix_fn(codes_BKT, parents), expected, strict=True):
        torch.testing.assert_close(mine, truth, atol=1e-5, rtol=0)
    with pytest.raises(ArgumentError, match="the last was answered"):
        one.step_fn(codes_BKT[:, :, 0], parents)


def test_padding_tokens_change_nothing(make_model: MakeModel, generator: torch.Generator):
    model = make_model(num_experts=4)
    tokens, lengths = prompts(generator)
    blank = tokens.masked_fill(torch.arange(11) >= lengths[:, None], VOCABULARY.pad)
    one, other = model.start(tokens, lengths), model.start(blank, lengths)
    codes, parents = torch.ones(4, 3, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64)
    assert torch.equal(one.step_fn(None, None), other.step_fn(None, None))
    assert torch.equal(one.step_fn(codes, parents), other.step_fn(codes, parents))


def test_the_prompt_is_kept_once_per_request_whatever_the_beams(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    tokens, lengths = prompts(generator)
    per_token = 2 * 2 * 3 * 10 * 4  # keys and values, layers, heads, d_kv, bytes of a float32
    for width in (1, 64):
        session = model.start(tokens, lengths)
        codes = torch.zeros(4, width, dtype=torch.int64)
        session.step_fn(None, None)
        for _ in range(3):
            session.step_fn(codes, codes)
        assert session.prompt.nbytes == 4 * 11 * per_token
        assert session.beams.nbytes == 4 * width * 4 * per_token  # the start token and three codes
        assert all(one.untyped_storage().nbytes() == one.nbytes for one in (*session.prompt.keys, *session.prompt.values))


def test_calling_with_none_starts_the_same_prompts_anew(make_model: MakeModel, generator: torch.Generator):
    session = make_model().start(*prompts(generator))
    codes, parents = torch.ones(4, 3, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64)
    first, second = session.step_fn(None, None), session.step_fn(codes, parents)
    assert torch.equal(session.step_fn(None, None), first)
    assert torch.equal(session.step_fn(codes.numpy().astype(np.uint8), parents.numpy()), second)


def test_impossible_steps_and_prompts_raise(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    session = model.start(*prompts(generator))
    good = torch.zeros(4, 2, dtype=torch.int64)
    for codes, parents in ((good + 16, good), (good, good + 1), (good[:3], good[:3]), (good.float(), good), (good, None)):
        with pytest.raises(ArgumentError):
            session.step_fn(codes, parents)
    for call, says in (
        (lambda: model.start(torch.zeros(1, 62, dtype=torch.int64)), "64 positions"),
        (lambda: model.start(torch.zeros(2, 5, dtype=torch.int64), torch.tensor([0, 5])), "lengths must be between"),
        (lambda: model.start(torch.full((1, 5), VOCABULARY.size)), "got one outside"),
        (lambda: model(torch.zeros(2, 5, dtype=torch.int64), torch.zeros(3, 1, dtype=torch.int64)), "targets must be tokens"),
        (
            lambda: make_model(dropout=0.1).train()(torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64)),
            r"pass dropout=torch\.Generator",
        ),
        (lambda: make_model(vocab_size=10), "raise vocab_size"),
    ):
        with pytest.raises(ArgumentError, match=says):
            call()


def test_no_requests_get_no_logits(make_model: MakeModel):
    session = make_model(num_experts=2).start(torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert session.step_fn(None, None).shape == (0, 16)
    nothing = torch.zeros(0, 4, dtype=torch.int64)
    assert session.step_fn(nothing, nothing).shape == (0, 4, 12)


def test_bfloat16_weights_search_close_to_float32(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    tokens, lengths = prompts(generator)
    codes, parents = torch.ones(4, 3, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64)
    exact = model.start(tokens, lengths).step_fn(codes, parents)
    rough = model.to(torch.bfloat16).start(tokens, lengths).step_fn(codes, parents)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_a_beam_search_over_everything_finds_the_items_in_the_models_order(
    make_model: MakeModel, generator: torch.Generator, scoring: str
):
    model = make_model()
    rng = np.random.default_rng(0)
    codes = np.unique(rng.integers(0, VOCABULARY.codebook_sizes, (60, 4)), axis=0)
    trie = Trie.build(codes, codebook_sizes=VOCABULARY.codebook_sizes)
    tokens, lengths = prompts(generator, size=2)
    session = model.start(tokens, lengths)
    search = BeamSearch(trie, num_beams=len(codes), scoring=scoring)  # type: ignore[arg-type]
    plain = search.run(session.step_fn, batch_size=2)
    forced = search.run(session.step_fn, batch_size=2, suffix_fn=session.suffix_fn)
    np.testing.assert_allclose(plain.scores, forced.scores, atol=1e-5)
    if scoring == "full":
        for request in range(2):
            prompt = tokens[request, : lengths[request]].expand(len(codes), -1)
            with torch.no_grad():
                hidden = model(prompt, model.vocabulary.tokens(torch.as_tensor(codes))[:, :-1])
            log_p = [model.head(hidden[:, t], t).double().log_softmax(-1) for t in range(4)]
            truth = sum(log_p[t][torch.arange(len(codes)), torch.as_tensor(codes[:, t])] for t in range(4))
            assert isinstance(truth, Tensor)
            order = truth.argsort(descending=True)
            assert plain.item_ids[request].tolist() == order.tolist()
            np.testing.assert_allclose(plain.scores[request], truth[order].detach().numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "tied", "old"), [("relu", True, False), ("gated-gelu", False, False), ("gated-gelu", False, True)]
)
def test_logits_equal_transformers_t5_after_loading_and_saving(tmp_path: Path, kind: str, tied: bool, old: bool):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=60,
        d_model=24,
        d_kv=8,
        d_ff=40,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=4,
        feed_forward_proj=kind,
        tie_word_embeddings=tied,
        decoder_start_token_id=0,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
    )
    theirs = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, 0.3)
    theirs.save_pretrained(tmp_path / "theirs")
    if old:  # as T5 v1.1 was published: a head of its own, copies of the embedding, a tensor that nobody reads
        from safetensors.torch import load_file, save_file

        tensors = load_file(tmp_path / "theirs" / "model.safetensors")
        tensors["lm_head.weight"] = torch.randn(60, 24)
        tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"].clone()
        tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.randn(8, 4)
        save_file(tensors, tmp_path / "theirs" / "model.safetensors", metadata={"format": "pt"})
        fields = json.loads((tmp_path / "theirs" / "config.json").read_text()) | {"tie_word_embeddings": False}
        del fields["scale_decoder_outputs"]
        (tmp_path / "theirs" / "config.json").write_text(json.dumps(fields))
        with torch.no_grad():
            theirs.lm_head.weight = torch.nn.Parameter(tensors["lm_head.weight"])
    ours = load_model(tmp_path / "theirs", vocabulary=VOCABULARY)
    assert isinstance(ours, EncoderDecoder)
    tokens, target, lengths = torch.randint(0, 60, (3, 31)), torch.randint(0, 60, (3, 3)), torch.tensor([31, 5, 1])
    asked = {
        "input_ids": tokens,
        "attention_mask": (torch.arange(31) < lengths[:, None]).long(),
        "decoder_input_ids": torch.cat((torch.zeros(3, 1, dtype=torch.int64), target), 1),
    }
    with torch.no_grad():
        logits = ours.logits(ours(tokens, target, lengths))
        torch.testing.assert_close(logits, theirs(**asked).logits, atol=2e-6, rtol=1e-5)
        if not old:
            ours.save_pretrained(tmp_path / "ours")
            again = T5ForConditionalGeneration.from_pretrained(tmp_path / "ours").eval()
            torch.testing.assert_close(logits, again(**asked).logits, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("fields", [{}, {"num_experts": 3, "feed_forward_proj": "gated-silu"}, {"tie_word_embeddings": False}])
def test_a_saved_model_is_loaded_unchanged(make_model: MakeModel, tmp_path: Path, fields: dict[str, object]):
    model = make_model(**fields)
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert isinstance(again, EncoderDecoder)
    assert again.config == dataclasses.replace(model.config)
    assert again.vocabulary == model.vocabulary
    mine, theirs = dict(model.named_parameters()), dict(again.named_parameters())
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert load_model(tmp_path, dtype=torch.bfloat16).head_weight.dtype == torch.bfloat16


def test_directories_of_another_architecture_are_refused(make_model: MakeModel, tmp_path: Path):
    make_model().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="model_type 't5'"):
        Transformer.from_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / CHECKSUMS).unlink()
    for change, message in (
        ({"model_type": "bart"}, "model_type 'bart'"),
        ({"d_ff": 41}, "do not belong together"),
        ({"num_layers": 3}, "lacks"),
        ({"num_layers": 1025}, "num_layers must be above 0 and at most 1,024"),
        ({"d_model": None}, "lacks d_model"),
        ({"feed_forward_proj": "swish"}, "choose one of relu"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(fields | change))
        with pytest.raises(CheckpointError, match=message):
            load_model(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 0}, "above 0"),
        ({"d_ff": 2.5}, "d_ff must be int"),
        ({"num_heads": True}, "num_heads must be int"),
        ({"tie_word_embeddings": 1}, "must be bool"),
        ({"layer_norm_epsilon": float("nan")}, "finite"),
        ({"initializer_factor": float("inf")}, "finite"),
        ({"feed_forward_proj": "gelu"}, "choose one of relu"),
        ({"relative_attention_num_buckets": 6}, "multiple of 4"),
        ({"relative_attention_max_distance": 4}, "above half"),
        ({"dropout": 1.0}, "below 1"),
        ({"decoder_start_token_id": 99}, "outside the vocabulary"),
        ({"num_experts": 2, "num_experts_per_tok": 3}, "raise num_experts"),
        ({"num_experts": -1}, "at least 0"),
    ],
)
def test_impossible_configs_are_refused(fields: dict[str, object], message: str):
    with pytest.raises(ArgumentError, match=message):
        EncoderDecoderConfig(**({"vocab_size": 45} | fields))  # type: ignore[arg-type]


def test_gradients_equal_finite_differences(make_model: MakeModel, generator: torch.Generator):
    model = make_model(d_model=8, d_kv=4, d_ff=6, num_heads=2, num_experts=3, num_experts_per_tok=2).double().train()
    tokens, lengths = prompts(generator, size=2, length=5)
    target = torch.randint(0, VOCABULARY.size, (2, 2), generator=generator)

    def loss() -> Tensor:
        balance: list[Tensor] = []
        hidden = model(tokens, target, lengths, balance=balance)
        return model.logits(hidden).double().log_softmax(-1)[..., 7].sum() + torch.stack(balance).sum()

    model.zero_grad()
    loss().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        if "router" in name:  # works in float32: too coarse for a difference, its gradient is checked in test_experts
            continue
        place = int(weight.grad.abs().argmax())
        flat, slope = weight.data.view(-1), float(weight.grad.view(-1)[place])
        before = float(flat[place])
        ends: list[float] = []
        for shift in (1e-3, -1e-3):
            flat[place] = before + shift
            with torch.no_grad():
                ends.append(float(loss()))
        flat[place] = before
        assert (ends[0] - ends[1]) / 2e-3 == pytest.approx(slope, rel=2e-2, abs=1e-3), name


def test_the_last_level_in_parts_equals_the_whole_step(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    tokens_BT, lengths_B = prompts(generator)
    session, width = model.start(tokens_BT, lengths_B), 1
    session.step_fn(None, None)
    for level in range(3):
        codes = torch.randint(0, VOCABULARY.codebook_sizes[level], (len(lengths_B), 6), generator=generator)
        parents = torch.randint(0, width, codes.shape, generator=generator)
        width = 6
        if level == 2:
            parts = [session.last_step_fn(codes[:, at], parents[:, at]) for at in (slice(4, 6), slice(0, 4), slice(4, 6))]
        logits = session.step_fn(codes, parents)
    torch.testing.assert_close(torch.cat([parts[1], parts[0]], 1), logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(parts[2], parts[0])
