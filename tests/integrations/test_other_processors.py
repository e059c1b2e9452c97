"""Logits processors of the caller, before and after ours: what they take away, and NaN that they return."""

from typing import Any

import pytest
import torch
from transformers import NoBadWordsLogitsProcessor

from leafbeam.errors import ArgumentError
from leafbeam.integrations import ConstraintLogitsProcessor, ItemConstraint
from leafbeam.integrations.served_items import ServedItems

from .tiny import EOS, Model, Shop, prompts


def everywhere(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores * float("nan")


def first_row(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    scores = scores.clone()
    scores[0] = float("nan")
    return scores


def last_step(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores * float("nan") if input_ids.shape[1] == 8 else scores


def infinite(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores.nan_to_num(neginf=0.0)  # raises what is excluded


@pytest.mark.parametrize("after", [everywhere, first_row, last_step, infinite])
@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 4, "num_return_sequences": 4}])
@pytest.mark.parametrize("steps", [3, 5])
def test_a_processor_after_ours_that_gives_nan_is_named(model: Model, after: Any, options: Any, steps: int) -> None:
    """G5: with the request and, where the scores are passed, the sequence."""
    shop, inputs = Shop(), prompts([6, 6])
    legal, returned = shop.processor(inputs), options.get("num_return_sequences", 1)
    output = model.generate(
        **inputs, logits_processor=[legal, after], max_new_tokens=steps, do_sample=False, return_dict_in_generate=True,
        output_scores=True, **options,
    )  # fmt: skip
    with pytest.raises(ArgumentError, match=rf"request 0 has no item.* after this one \({after.__name__}\) returned NaN"):
        legal.results(output.sequences, num_return_sequences=returned)
    if returned > 1 and after is not infinite:
        with pytest.raises(ArgumentError, match="the score of sequence 0, of request 0, is NaN"):
            legal.results(output.sequences, output.sequences_scores, num_return_sequences=returned)


@pytest.mark.parametrize("steps", [1, 5])
def test_a_processor_after_a_constraint_of_texts_is_named(model: Model, steps: int) -> None:
    """G5: in the next step, or where there is none, by `results`."""
    shop, inputs = Shop(), prompts([6, 6])
    items = ItemConstraint(items=ServedItems(index=shop.index, eos_token_id=EOS, code_tokens=shop.tokens))
    legal = ConstraintLogitsProcessor(items, eos_token_id=EOS, prompt_length=6)
    with pytest.raises(ArgumentError, match=r"A processor after this one \(everywhere\) returned NaN"):  # noqa: PT012
        output = model.generate(**inputs, logits_processor=[legal, everywhere], max_new_tokens=steps, do_sample=False)
        legal.results(output)


def test_items_that_processors_before_ours_take_away_are_a_short_answer(model: Model) -> None:
    """G5: these are seen, so nothing is raised, even with a harmless processor after ours."""
    shop, inputs = Shop(), prompts([6, 6])
    before = NoBadWordsLogitsProcessor([[int(token)] for token in shop.tokens[1]], eos_token_id=EOS)
    legal = shop.processor(inputs)
    for options in ({"num_beams": 1}, {"num_beams": 4, "num_return_sequences": 4}):
        output = model.generate(**inputs, logits_processor=[before, legal], max_new_tokens=3, do_sample=False, **options)
        assert legal.results(output, num_return_sequences=options.get("num_return_sequences", 1)).num_valid.tolist() == [0, 0]
