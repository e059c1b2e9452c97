"""Decoding steps against the whole model run on `prompt + codes` of every beam, anew in every step."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from leafbeam.errors import ArgumentError
from leafbeam.model import AnyModel, EncoderDecoder, TokenTable, Transformer, token_bytes
from leafbeam.ops.attention.reference import merge, prefix_attention, suffix_attention
from tests.fixtures.sessions import Paths, check_a_search, concatenated, extended, prompts, random_round

MakeModel = Callable[..., Transformer]


@pytest.fixture(params=["decoder", "encoder-decoder"])
def model(
    request: pytest.FixtureRequest, make_model: MakeModel, make_encoder_decoder: Callable[..., EncoderDecoder]
) -> AnyModel:
    return make_model() if request.param == "decoder" else make_encoder_decoder(num_experts=3)


@pytest.mark.parametrize("fields", [{}, {"num_experts": 4, "feed_forward_proj": "gated-silu"}, {"bias_in_every_layer": True}])
@pytest.mark.parametrize("widths", [(5, 5, 5), (3, 8, 2)])
def test_steps_of_an_encoder_decoder_equal_each_beam_run_alone(
    make_encoder_decoder: Callable[..., EncoderDecoder],
    generator: torch.Generator,
    poisoned: None,
    widths: tuple[int, ...],
    fields: dict[str, object],
):
    model = make_encoder_decoder(**fields)
    check_a_search(model, *prompts(model, generator), widths, generator)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("widths", [(5, 5, 5), (3, 8, 2), (1, 1, 1)])
def test_steps_equal_the_concatenated_sequences(
    make_model: MakeModel, generator: torch.Generator, poisoned: None, key_heads: int, widths: tuple[int, ...]
):
    model = make_model(num_key_value_heads=key_heads, initializer_range=0.1)
    check_a_search(model, *prompts(model, generator), widths, generator)


def test_steps_of_a_token_table_equal_the_concatenated_sequences(make_model: MakeModel, generator: torch.Generator):
    table = TokenTable(tokens_per_level=((90, 4, 51, 17, 88), (33, 4, 70), (9, 8, 7, 60)), size=100, pad=0, bos=1, eos=2)
    model = make_model(table, tie_word_embeddings=True)
    check_a_search(model, *prompts(model, generator), (4, 6), generator)


def test_prompts_of_equal_length_need_no_lengths(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    tokens, _ = prompts(model, generator)
    full = torch.full((4,), 11)
    with_lengths, without = model.start(tokens, full), model.start(tokens)
    assert torch.equal(with_lengths.step_fn(None, None), without.step_fn(None, None))
    codes, parents = torch.ones(4, 3, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64)
    assert torch.equal(with_lengths.step_fn(codes, parents), without.step_fn(codes, parents))


def test_padding_tokens_change_nothing(model: AnyModel, generator: torch.Generator):
    tokens, lengths = prompts(model, generator)
    blank = tokens.masked_fill(torch.arange(11) >= lengths[:, None], model.vocabulary.pad)
    one, other = model.start(tokens, lengths), model.start(blank, lengths)
    codes, parents = torch.ones(4, 3, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64)
    assert torch.equal(one.step_fn(None, None), other.step_fn(None, None))
    assert torch.equal(one.step_fn(codes, parents), other.step_fn(codes, parents))


def test_dead_beams_do_not_change_live_beams(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    tokens, lengths = prompts(model, generator)
    session = model.start(tokens, lengths)
    paths: Paths = [[()] for _ in lengths]
    session.step_fn(None, None)
    for living in (3, 2, 4):
        codes, parents, _ = random_round(model, paths, 5, generator)
        parents.clamp_(max=2)
        codes[:, living:] = 0
        parents[:, living:] = 0
        paths = extended(paths, codes, parents)
        logits = session.step_fn(codes, parents)
        assert logits.isfinite().all()
        expected = concatenated(model, tokens, lengths, paths)
        torch.testing.assert_close(logits[:, :living], expected[:, :living], atol=1e-5, rtol=0)


def test_the_prompt_is_kept_once_per_request_whatever_the_beams(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    tokens, lengths = prompts(model, generator)
    per_token = 2 * 2 * 2 * 16 * 4  # keys and values, layers, key heads, head_dim, bytes of a float32
    suffixes: list[int] = []
    for width in (1, 64):
        session = model.start(tokens, lengths)
        for _ in range(3):
            codes = torch.zeros(4, width, dtype=torch.int64)
            session.step_fn(codes, codes)
        assert session.prompt.nbytes == int(lengths.sum()) * per_token
        assert session.beams.nbytes == 4 * width * 3 * per_token
        suffixes.append(session.beams.nbytes)
    assert suffixes[1] == 64 * suffixes[0]


def test_calling_with_none_starts_the_same_prompts_anew(model: AnyModel, generator: torch.Generator):
    session = model.start(*prompts(model, generator))
    codes, parents = torch.ones(4, 3, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64)
    first, second = session.step_fn(None, None), session.step_fn(codes, parents)
    session.step_fn(codes, parents)
    assert torch.equal(session.step_fn(None, None), first)
    assert torch.equal(session.step_fn(codes, parents), second)


def test_numpy_codes_of_any_integer_type_are_accepted(model: AnyModel, generator: torch.Generator):
    session = model.start(*prompts(model, generator))
    codes, parents = torch.ones(4, 3, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64)
    expected = session.step_fn(codes, parents)
    session.step_fn(None, None)
    assert torch.equal(session.step_fn(codes.numpy().astype(np.int32), parents.numpy().astype(np.uint8)), expected)


def test_no_requests_get_no_logits(model: AnyModel):
    session = model.start(torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert session.step_fn(None, None).shape == (0, 16)
    nothing = torch.zeros(0, 4, dtype=torch.int64)
    assert session.step_fn(nothing, nothing).shape == (0, 4, 12)


def test_bfloat16_weights_search_close_to_float32(model: AnyModel, generator: torch.Generator):
    tokens, lengths = prompts(model, generator)
    codes, parents = torch.ones(4, 3, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64)
    exact = model.start(tokens, lengths).step_fn(codes, parents)
    rough = model.to(torch.bfloat16).start(tokens, lengths).step_fn(codes, parents)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).abs().max() < 0.05 * exact.abs().max()


def test_a_search_records_no_gradients(model: AnyModel, generator: torch.Generator):
    tokens, lengths = prompts(model, generator)
    codes = torch.zeros(4, 3, dtype=torch.int64)
    session = model.start(tokens, lengths)
    assert session.step_fn(None, None).is_inference()
    assert session.step_fn(codes, codes).is_inference()


def test_a_model_in_training_searches_without_dropout(make_model: MakeModel, generator: torch.Generator):
    model = make_model(dropout=0.5).train()
    tokens, lengths = prompts(model, generator)
    codes = torch.zeros(4, 3, dtype=torch.int64)
    training, evaluating = model.start(tokens, lengths), model.eval().start(tokens, lengths)
    assert torch.equal(training.step_fn(codes, codes), evaluating.step_fn(codes, codes))


def test_a_step_without_beams_gives_empty_logits(model: AnyModel, generator: torch.Generator):
    session = model.start(*prompts(model, generator))
    nothing = torch.zeros(4, 0, dtype=torch.int64)
    assert session.step_fn(nothing, nothing).shape == (4, 0, 12)
    assert session.step_fn(nothing, nothing).shape == (4, 0, 9)


@pytest.mark.parametrize(
    ("codes", "parents"),
    [
        ([[16]] * 4, [[0]] * 4),
        ([[-1]] * 4, [[0]] * 4),
        ([[0]] * 4, [[1]] * 4),
        ([[0]] * 4, [[-1]] * 4),
        ([[0]] * 3, [[0]] * 3),
        ([[0]] * 4, [[0, 0]] * 4),
        ([0] * 4, [0] * 4),
        ([[0.5]] * 4, [[0]] * 4),
        ([[0]] * 4, None),
        (None, [[0]] * 4),
        ("abcd", [[0]] * 4),
        ([[0], [0, 1], [0], [0]], [[0]] * 4),
    ],
)
def test_impossible_codes_and_parents_raise(make_model: MakeModel, generator: torch.Generator, codes: object, parents: object):
    model = make_model()
    session = model.start(*prompts(model, generator))
    session.step_fn(None, None)
    with pytest.raises(ArgumentError):
        session.step_fn(codes, parents)


def test_a_step_after_the_last_level_raises(model: AnyModel, generator: torch.Generator):
    session = model.start(*prompts(model, generator))
    zeros = torch.zeros(4, 1, dtype=torch.int64)
    for _ in range(3):
        session.step_fn(zeros, zeros)
    with pytest.raises(ArgumentError, match="4 levels"):
        session.step_fn(zeros, zeros)


@pytest.mark.parametrize("lengths", [[0, 1], [1, 6], [5], [-1, 1]])
def test_impossible_lengths_raise(make_model: MakeModel, lengths: list[int]):
    with pytest.raises(ArgumentError, match="lengths"):
        make_model().start(torch.zeros(2, 5, dtype=torch.int64), torch.tensor(lengths))


def test_a_prompt_that_leaves_no_room_for_a_sid_raises(make_model: MakeModel):
    model = make_model()
    model.start(torch.zeros(1, 61, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="64 positions"):
        model.start(torch.zeros(1, 62, dtype=torch.int64))


def test_merged_attention_equals_one_softmax_however_far_apart_the_scores(generator: torch.Generator):
    for scale in (0.1, 1.0, 30.0):
        query = torch.randn(2, 3, 4, 8, generator=generator) * scale
        keys = torch.randn(2, 3, 9, 2, 8, generator=generator)
        values = torch.randn(2, 3, 9, 2, 8, generator=generator)
        keys[:, 1:, :6], values[:, 1:, :6] = keys[:, :1, :6], values[:, :1, :6]  # the prompt is the same for all beams
        every_key = keys.repeat_interleave(2, 3)
        weights = (torch.einsum("bkhe,bkshe->bkhs", query, every_key) * 8**-0.5).softmax(-1)
        expected = torch.einsum("bkhs,bkshe->bkhe", weights, values.repeat_interleave(2, 3))
        prompt_keys, prompt_values = keys[:, 0, :6].permute(0, 2, 3, 1), values[:, 0, :6].transpose(1, 2)
        prefix = prefix_attention(query, prompt_keys, prompt_values, None)
        suffix = suffix_attention(query, keys[:, :, 6:], values[:, :, 6:])
        torch.testing.assert_close(merge(*prefix, *suffix), expected, atol=1e-5, rtol=0)


def test_a_random_search_over_many_shapes_equals_concatenation(make_model: MakeModel, generator: torch.Generator):
    for query_heads, key_heads, head_dim, layers in ((1, 1, 8, 1), (6, 3, 10, 3), (8, 2, 4, 2)):
        model = make_model(
            num_attention_heads=query_heads, num_key_value_heads=key_heads, head_dim=head_dim, num_hidden_layers=layers
        )
        widths = tuple(int(w) for w in torch.randint(1, 9, (3,), generator=generator))
        check_a_search(model, *prompts(model, generator, size=2, length=7), widths, generator)


def test_the_cache_holds_one_slot_per_code_when_beams_grow_and_shrink(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    session = check_a_search(model, *prompts(model, generator), (2, 9, 4), generator)
    assert session.beams.nbytes == 4 * (2 + 9 + 4) * token_bytes(model.config)


@pytest.mark.parametrize("widths", [(5, 5, 5), (3, 8, 2)])
def test_the_torch_runner_equals_the_concatenated_sequences(
    make_model: MakeModel, generator: torch.Generator, poisoned: None, widths: tuple[int, ...]
):
    model = make_model(initializer_range=0.1).double()
    check_a_search(model, *prompts(model, generator), widths, generator)


@pytest.mark.parametrize("taken", [0, 1, 2])
@pytest.mark.parametrize("fresh", [True, False])
def test_suffixes_in_one_pass_equal_single_steps(model: AnyModel, taken: int, fresh: bool) -> None:
    generator = torch.Generator().manual_seed(taken)
    tokens_BT, lengths_B = prompts(model, generator)
    one, many = model.start(tokens_BT, lengths_B), model.start(tokens_BT, lengths_B)
    width = 1
    for session in (one, many):
        if not fresh:  # a caller that knows the logits of level 0 may skip this call
            session.step_fn(None, None)
    for level in range(taken):
        size = model.vocabulary.codebook_sizes[level]
        codes = torch.randint(0, size, (len(lengths_B), 5), generator=generator)
        parents = torch.randint(0, width, codes.shape, generator=generator)
        for session in (one, many):
            session.step_fn(codes, parents)
        width = 5
    sizes = model.vocabulary.codebook_sizes[taken:-1]
    codes_BKT = torch.stack([torch.randint(0, size, (len(lengths_B), 4), generator=generator) for size in sizes], 2)
    parents = torch.randint(0, width, codes_BKT.shape[:2], generator=generator)
    expected = [many.step_fn(codes_BKT[:, :, 0], parents)]
    own = torch.arange(4).expand(len(lengths_B), 4)
    expected += [many.step_fn(codes_BKT[:, :, t], own) for t in range(1, len(sizes))]
    found = one.suffix_fn(codes_BKT, parents)
    assert len(found) == len(expected)
    for mine, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, truth, atol=1e-5, rtol=0)
    with pytest.raises(ArgumentError, match="the last was answered"):
        one.step_fn(codes_BKT[:, :, 0], parents)


def test_suffixes_of_wrong_shape_or_content_are_refused(make_model: MakeModel) -> None:
    model = make_model()
    tokens_BT, lengths_B = prompts(model, torch.Generator().manual_seed(0))
    session = model.start(tokens_BT, lengths_B)
    session.step_fn(None, None)
    parents = torch.zeros(len(lengths_B), 2, dtype=torch.int64)
    with pytest.raises(ArgumentError, match=r"must have shape \(B, K, T\)"):
        session.suffix_fn(parents, parents)
    with pytest.raises(ArgumentError, match="got one outside"):
        session.suffix_fn(torch.full((len(lengths_B), 2, 1), 10**6), parents)
    too_many = torch.zeros(len(lengths_B), 2, model.vocabulary.num_levels, dtype=torch.int64)
    with pytest.raises(ArgumentError, match="levels and the last was answered"):
        session.suffix_fn(too_many, parents)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "general"])
def test_more_beams_of_earlier_levels_equal_whole_steps(
    model: AnyModel, generator: torch.Generator, dtype: torch.dtype
) -> None:
    """Also by the runner of other dtypes, with its exact products; and after a suffix."""
    model = model.to(dtype)
    tokens_BT, lengths_B = prompts(model, generator)
    num_levels, sizes = model.vocabulary.num_levels, model.vocabulary.codebook_sizes
    whole, parts = (model.start(tokens_BT, lengths_B) for _ in range(2))
    steps: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    whole.step_fn(None, None)
    for level in range(num_levels - 1):
        codes = torch.randint(0, sizes[level], (len(tokens_BT), 9), generator=generator)
        parents = torch.randint(0, 9 if level else 1, codes.shape, generator=generator)
        parents[:, :3] %= 3  # what runs first extends what ran first, and so on
        parents[:, 3:6] %= 6
        steps.append((codes, parents, whole.step_fn(codes, parents)))
    parts.step_fn(None, None)
    for begin, end in ((0, 3), (3, 6), (6, 9)):
        for level, (codes, parents, logits) in enumerate(steps):
            wanted = codes[:, begin:end], parents[:, begin:end]
            found = parts.step_fn(*wanted) if begin == 0 else parts.more_fn(*wanted, level)
            torch.testing.assert_close(found, logits[:, begin:end], atol=1e-5, rtol=0)
    for level in (-1, num_levels):
        with pytest.raises(ArgumentError, match="the next one"):
            parts.more_fn(*steps[0][:2], level)
    with pytest.raises(ArgumentError, match="the level before had the beams 0 to 0, got a parent outside"):
        parts.more_fn(steps[0][0], torch.ones_like(steps[0][1]), 0)


SUFFIXES = {
    "a code of the second level": lambda codes: codes.index_fill(2, torch.tensor([1]), 99),
    "a code of the last level": lambda codes: codes.index_fill(2, torch.tensor([2]), -1),
    "too many levels": lambda codes: torch.cat((codes, codes), 2),
    "no level": lambda codes: codes[:, :, :0],
    "floats": lambda codes: codes.float(),
    "another number of requests": lambda codes: codes[:1],
}


@pytest.mark.parametrize("kind", [*SUFFIXES, "a parent"])
@pytest.mark.parametrize("taken", [0, 1])
def test_refused_suffixes_leave_the_session_as_it_was(make_model: MakeModel, generator: torch.Generator, kind: str, taken: int):
    """M6: the level had advanced after a refusal, so that the next call was of another level."""
    model = make_model()
    tokens, lengths = prompts(model, generator)
    refused, plain = model.start(tokens, lengths), model.start(tokens, lengths)
    codes, parents = torch.ones(4, 3, 3, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64)
    for session in (refused, plain):
        for _ in range(taken):
            session.step_fn(codes[:, :, 0], parents)
    suffix = codes if kind == "a parent" else SUFFIXES[kind](codes)
    before = repr(refused)
    with pytest.raises(ArgumentError):
        refused.suffix_fn(suffix[:, :, taken:] if suffix.shape[2] == 3 else suffix, parents + 9 * (kind == "a parent"))
    with pytest.raises(ArgumentError):
        refused.step_fn(codes[:, :, 0] + 99, parents)
    assert repr(refused) == before
    rest = codes[:, :, taken:]
    for mine, theirs in zip(refused.suffix_fn(rest, parents), plain.suffix_fn(rest, parents), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("kind", ["decoder", "decoder in float64", "table", "soft cap", "encoder-decoder"])
@pytest.mark.parametrize("block", [7, 8192])
def test_the_column_of_other_tokens_makes_probabilities_those_of_the_whole_vocabulary(
    make_model: MakeModel,
    make_encoder_decoder: Callable[..., EncoderDecoder],
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    block: int,
):
    monkeypatch.setattr("leafbeam.model.other_tokens._BLOCK", block)
    table = TokenTable(tokens_per_level=((90, 4, 51, 17, 88), (33, 4, 70), (9, 8, 7, 60)), size=100, pad=0, bos=1, eos=2)
    fields: dict[str, object] = {"vocab_size": 100}
    if kind == "encoder-decoder":
        model: AnyModel = make_encoder_decoder(**fields)
    else:
        cap: dict[str, object] = {"logit_cap": 3.0} if kind == "soft cap" else {}
        model = make_model(table if kind == "table" else None, **fields, **cap)
    if kind == "decoder in float64":
        model = model.double()
    tokens, lengths = prompts(model, generator)
    session, plain = model.start(tokens, lengths, other_tokens=True), model.start(tokens, lengths)
    given: tuple[torch.Tensor | None, torch.Tensor | None] = None, None
    paths: Paths = [[()] for _ in lengths]
    for level in range(model.vocabulary.num_levels):
        logits, codes_alone = session.step_fn(*given), plain.step_fn(*given)
        torch.testing.assert_close(logits[..., :-1], codes_alone.float(), atol=1e-5, rtol=0)
        monkeypatch.setattr(model, "head", lambda hidden, level: model.logits(hidden))
        whole = concatenated(model, tokens, lengths, paths).view(*logits.shape[:-1], -1).double()
        expected = whole.log_softmax(-1)[..., model.vocabulary.level_tokens(level)]
        torch.testing.assert_close(logits.double().log_softmax(-1)[..., :-1], expected, atol=2e-5, rtol=0)
        if level + 1 < model.vocabulary.num_levels:
            codes, parents, paths = random_round(model, paths, 3, generator)
            given = codes, parents


def test_hidden_states_have_no_column_of_other_tokens(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    with pytest.raises(ArgumentError, match="hidden and other_tokens are true"):
        model.start(*prompts(model, generator), hidden=True, other_tokens=True)
