import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.errors import ArgumentError, CodesError
from leafbeam.model import PromptTokens, TokenTable, Vocabulary, vocabulary_from_dict

RANGES = Vocabulary(codebook_sizes=(5, 3, 7))
TABLE = TokenTable(
    tokens_per_level=((90, 4, 51, 17, 88), (33, 4, 70), (9, 8, 7, 60, 61, 99, 98)), size=100, pad=0, bos=1, eos=2
)
BOTH = pytest.mark.parametrize("vocabulary", [RANGES, TABLE], ids=["ranges", "table"])


def test_levels_lie_end_to_end_behind_the_specials():
    assert (RANGES.pad, RANGES.bos, RANGES.eos) == (0, 1, 2)
    assert RANGES.offsets == (3, 8, 11)
    assert RANGES.size == 18
    assert [RANGES.level_slice(t) for t in range(3)] == [slice(3, 8), slice(8, 11), slice(11, 18)]


@BOTH
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_codes_is_the_inverse_of_tokens(vocabulary: Vocabulary | TokenTable, data: st.DataObject):
    row = st.tuples(*(st.integers(0, size - 1) for size in vocabulary.codebook_sizes))
    codes = np.array(data.draw(st.lists(row, min_size=1)))
    tokens = vocabulary.tokens(codes)
    assert np.array_equal(vocabulary.codes(tokens), codes)
    assert torch.equal(vocabulary.tokens(torch.from_numpy(codes)), torch.from_numpy(tokens))
    for t in range(3):
        assert np.array_equal(vocabulary.tokens_at(torch.from_numpy(codes[:, t]), t).numpy(), tokens[:, t])


@BOTH
def test_rows_of_a_level_are_those_of_its_tokens_in_the_order_of_the_codes(vocabulary: Vocabulary | TokenTable):
    matrix = torch.arange(vocabulary.size)[:, None].float()
    for t, size in enumerate(vocabulary.codebook_sizes):
        expected = vocabulary.tokens_at(torch.arange(size), t).float()
        assert torch.equal(vocabulary.level_rows(matrix, t)[:, 0], expected)


def test_rows_of_a_contiguous_level_are_a_view():
    matrix = torch.zeros(RANGES.size, 4)
    assert RANGES.level_rows(matrix, 1).data_ptr() == matrix[8].data_ptr()


@BOTH
def test_a_vocabulary_survives_json(vocabulary: Vocabulary | TokenTable):
    assert vocabulary_from_dict(json.loads(json.dumps(vocabulary.to_dict()))) == vocabulary


@BOTH
def test_prompts_begin_with_bos_and_are_padded_on_the_right(vocabulary: Vocabulary | TokenTable):
    tokens_BT, lengths_B = vocabulary.prompts([[[0, 1, 2], [4, 2, 6]], [], np.array([[3, 0, 0]])])
    assert lengths_B.tolist() == [7, 1, 4]
    assert tokens_BT[:, 0].tolist() == [vocabulary.bos] * 3
    assert np.array_equal(tokens_BT[0, 1:].reshape(2, 3), vocabulary.tokens([[0, 1, 2], [4, 2, 6]]))
    assert (tokens_BT[1, 1:] == vocabulary.pad).all()
    assert (tokens_BT[2, 4:] == vocabulary.pad).all()


@BOTH
def test_no_histories_make_no_prompts(vocabulary: Vocabulary | TokenTable):
    tokens_BT, lengths_B = vocabulary.prompts([])
    assert tokens_BT.shape == (0, 1)
    assert lengths_B.shape == (0,)


@BOTH
@pytest.mark.parametrize(
    "codes", [[[0, 0, -1]], [[5, 0, 0]], [[0, 3, 0]], [[0, 0]], [[0, 0, 0, 0]], [[0.0, 1.0, 2.0]], 7, [["a", "b", "c"]]]
)
def test_invalid_codes_raise(vocabulary: Vocabulary | TokenTable, codes: object):
    with pytest.raises(CodesError):
        vocabulary.tokens(codes)  # type: ignore[arg-type]


@BOTH
@pytest.mark.parametrize("tokens", [[[0, 1, 2]], [[3, 3, 3]], [[-1, 8, 11]], [[90, 33, 2**40]], [[3, 8]]])
def test_tokens_that_are_no_codes_raise(vocabulary: Vocabulary | TokenTable, tokens: list[list[int]]):
    with pytest.raises(CodesError):
        vocabulary.codes(tokens)


@pytest.mark.parametrize(
    "fields",
    [
        {"codebook_sizes": ()},
        {"codebook_sizes": (4, 0)},
        {"codebook_sizes": (4, -1)},
        {"codebook_sizes": (4.0,)},
        {"codebook_sizes": (True,)},
        {"codebook_sizes": (4,), "num_specials": 2},
        {"codebook_sizes": (4,), "num_specials": 3.5},
    ],
)
def test_impossible_ranges_raise(fields: dict[str, object]):
    with pytest.raises(ArgumentError):
        Vocabulary(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"tokens_per_level": ()},
        {"tokens_per_level": ((5,), ())},
        {"tokens_per_level": ((5, 5),)},
        {"tokens_per_level": ((5, 100),)},
        {"tokens_per_level": ((-5,),)},
        {"tokens_per_level": ((5.0,),)},
        {"tokens_per_level": ((5, 1),)},
        {"pad": 100},
        {"bos": -1},
        {"eos": 2.0},
        {"size": "100"},
    ],
)
def test_impossible_tables_raise(change: dict[str, object]):
    fields: dict[str, object] = {"tokens_per_level": ((5, 6), (7,)), "size": 100, "pad": 0, "bos": 1, "eos": 2}
    with pytest.raises(ArgumentError):
        TokenTable(**(fields | change))  # type: ignore[arg-type]


def test_a_prompt_leaves_out_the_levels_of_the_tokens_that_end_an_answer():
    prompt = PromptTokens(before=(1,), between=(50, 51), after=(2, 52), levels=2)
    ended = TokenTable(tokens_per_level=((5, 6), (7, 8), (60,), (2,)), size=100, pad=0, bos=1, eos=2, prompt=prompt)
    plain = replace(ended, tokens_per_level=ended.tokens_per_level[:2], prompt=replace(prompt, levels=None))
    history = np.array([[1, 0], [0, 1], [1, 1]])
    histories, plain_histories = ([h[:n] for n in (0, 1, 3)] for h in (np.pad(history, ((0, 0), (0, 2))), history))
    for found, expected in zip(ended.prompts(histories), plain.prompts(plain_histories), strict=True):
        np.testing.assert_array_equal(found, expected)
    for positions in range(7, 40):  # the answer's tokens but the last take positions beside the history
        num_items = ended.max_history(positions)
        assert (num_items >= 0) == (ended.prompt_length(0) + 3 <= positions)
        if num_items >= 0:
            assert ended.prompt_length(num_items) + 3 <= positions < ended.prompt_length(num_items + 1) + 3
    assert vocabulary_from_dict(json.loads(json.dumps(ended.to_dict()))) == ended
    for levels in (0, 5, 1.5):
        with pytest.raises(ArgumentError):
            replace(ended, prompt=replace(prompt, levels=levels))
