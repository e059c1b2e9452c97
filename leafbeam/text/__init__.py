"""Text of a language model under a constraint: a regular expression, a JSON Schema, a list of texts or items of an index."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.decode import Sampling
    from leafbeam.text.chat_template import ChatTemplate
    from leafbeam.text.compiler import CompileLimits
    from leafbeam.text.constraints import Choices, FreeText, JsonSchema, Regex, Template, TextConstraint
    from leafbeam.text.generator import GenerateOptions, TextGenerator, TextStream, generate
    from leafbeam.text.items import Items
    from leafbeam.text.request import Generation, GenerationResult, TextRequest
    from leafbeam.text.run import TextBatch, TextRun
    from leafbeam.text.service import TextService
    from leafbeam.text.settings import TextSettings
    from leafbeam.text.stepwise_run import StepwiseRun
    from leafbeam.text.tokenizer import TextTokenizer

__all__ = [
    "ChatTemplate",
    "Choices",
    "CompileLimits",
    "FreeText",
    "GenerateOptions",
    "Generation",
    "GenerationResult",
    "Items",
    "JsonSchema",
    "Regex",
    "Sampling",
    "StepwiseRun",
    "Template",
    "TextBatch",
    "TextConstraint",
    "TextGenerator",
    "TextRequest",
    "TextRun",
    "TextService",
    "TextSettings",
    "TextStream",
    "TextTokenizer",
    "generate",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
