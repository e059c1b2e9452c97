"""Text of a language model under a constraint: a regular expression, a JSON Schema or a list of texts."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.text.constraints import Choices, JsonSchema, Regex, TextConstraint
    from leafbeam.text.generator import Generation, GenerationResult, TextGenerator
    from leafbeam.text.tokenizer import TextTokenizer

__all__ = [
    "Choices",
    "Generation",
    "GenerationResult",
    "JsonSchema",
    "Regex",
    "TextConstraint",
    "TextGenerator",
    "TextTokenizer",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
