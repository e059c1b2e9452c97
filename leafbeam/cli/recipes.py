"""Recipes: how published recommenders write their files, ask their models and search, as data for `leafbeam import`."""

# ruff: noqa: RUF001 (OpenOneRec's prompt is in Chinese)

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leafbeam import model

RecipeName = Literal["mini-onerec", "lc-rec", "open-onerec", "grid", "letter"]


def _load_grid(path: Path) -> "model.EncoderDecoder":
    from leafbeam.model.grid import load_grid

    return load_grid(path)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The formats of one published recommender.

    Attributes:
        scoring: The scoring of a request whose answer is that of the recommender's own decoding.
        tokens: The names of each level's tokens, for a file of Semantic IDs that holds numbers.
        prompt: The text of a prompt, with {history}; None is what the tokenizer puts around a history.
        separator: The text between two items of a history.
        ending: The text between an answer and the end token, both of which its decoding scores; None if it scores codes alone.
        id_column: The column of item ids in a table of codes.
        packed_sizes: The sizes of the codebooks from which a Semantic ID is written as one number; () if it never is.
        transposed: Whether a matrix of codes has a row for each level.
        load: Loads a checkpoint that is not a Hugging Face directory.
    """

    scoring: Literal["full", "vocabulary"]
    tokens: tuple[str, ...] = ()
    prompt: str | None = None
    separator: str = ""
    ending: str | None = None
    id_column: str = "item_id"
    packed_sizes: tuple[int, ...] = ()
    transposed: bool = False
    load: Callable[[Path], "model.EncoderDecoder"] | None = None


NO_RECIPE = Recipe(scoring="full")

# The instructions with which Alpaca was trained, and after it LC-Rec and MiniOneRec. The blanks before line ends are theirs.
_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that "
    "appropriately completes the request. \n\n### Instruction:\n"
)
_ALONE = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n"
)

RECIPES: dict[RecipeName, Recipe] = {
    "mini-onerec": Recipe(  # the prompt of its evaluation
        scoring="vocabulary",
        tokens=("<a_*>", "<b_*>", "<c_*>"),
        prompt=f"{_WITH_INPUT}Can you predict the next possible item that the user may expect?\n\n### User Input: \nCan you "
        "predict the next possible item the user may expect, given the following chronological interaction history: {history}"
        "\n\n### Response:\n",
        separator=", ",
        ending="\n",
    ),
    "lc-rec": Recipe(  # the first prompt of its sequential recommendation
        scoring="vocabulary",
        tokens=("<a_*>", "<b_*>", "<c_*>", "<d_*>"),
        prompt=f"{_ALONE}The user has interacted with items {{history}} in chronological order. Can you predict the next "
        "possible item that the user may expect?\n\n### Response:",
        separator=", ",
        ending="",
    ),
    "open-onerec": Recipe(  # the first prompts of its video recommendation, in its template for a chat without thinking
        scoring="vocabulary",
        tokens=("<s_a_*>", "<s_b_*>", "<s_c_*>"),
        prompt="<|im_start|>system\n你是一个智能推荐助手，能够根据用户的浏览历史预测用户可能感兴趣的下一个内容。<|im_end|>\n"
        "<|im_start|>user\n根据以下用户浏览记录，请预测用户接下来可能观看的内容：\n<|sid_begin|>{history}<|sid_end|>/no_think"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n<|sid_begin|>",
        separator="<|sid_end|><|sid_begin|>",
        id_column="pid",
        packed_sizes=(8192, 8192, 8192),
    ),
    "grid": Recipe(scoring="full", transposed=True, load=_load_grid),
    "letter": Recipe(scoring="vocabulary", tokens=("<a_*>", "<b_*>", "<c_*>", "<d_*>"), ending=""),
}
