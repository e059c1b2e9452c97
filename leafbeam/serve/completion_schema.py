"""The JSON of the routes that OpenAI's clients use: types are checked here, values in `to_...` and behind it."""

import json
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from leafbeam.decode import Sampling
from leafbeam.errors import short_repr
from leafbeam.serve.errors import BodyError
from leafbeam.serve.schema import Id, Int64, ItemId, RecommendBody, RequestFields

# What clients send although it changes nothing; any other value would be ignored, and is refused.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None, False, 0),
    "presence_penalty": (None, 0),
    "suffix": (None, ""),
    "top_logprobs": (None, 0),
}


class ModelName(Struct, frozen=True, kw_only=True):
    """The part of a body that says which model answers."""

    model: str


class JsonSchemaFormat(Struct, frozen=True, kw_only=True):
    """A JSON Schema in `response_format`; its name, description and `strict` change nothing."""

    schema: msgspec.Raw


class ResponseFormat(Struct, frozen=True, kw_only=True):
    type: Annotated[str, Meta(description="`text`, `json_object` or `json_schema`.")]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A constraint under the names of vLLM, exactly one."""

    json: Annotated[
        dict[str, Any] | bool | str | None, Meta(description="A JSON Schema, or its text: texts are its instances.")
    ] = None
    regex: Annotated[str | None, Meta(description="A pattern that the whole text matches.")] = None
    choice: Annotated[list[str] | None, Meta(description="The text is one of these.")] = None
    json_object: Annotated[bool | None, Meta(description="If true, texts are JSON objects.")] = None

    def constraints(self) -> dict[str, dict[str, object]]:
        """Return the constraints in JSON, by the path of their field in the body."""
        constraints: dict[str, dict[str, object]] = {}
        if self.json is not None:
            constraints["structured_outputs.json"] = {"json_schema": self.json}
        if self.regex is not None:
            constraints["structured_outputs.regex"] = {"regex": self.regex}
        if self.choice is not None:
            constraints["structured_outputs.choice"] = {"choices": self.choice}
        if self.json_object:
            constraints["structured_outputs.json_object"] = {"json_schema": {"type": "object"}}
        return constraints


class StreamOptions(Struct, frozen=True, kw_only=True):
    include_usage: bool = False


class TextOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that `/v1/completions` and `/v1/chat/completions` share for a language model."""

    model: str
    max_tokens: Annotated[
        Int64 | None,
        Meta(
            description="The largest number of tokens of a text, including its end. Default: 256, or as many as fit the model."
        ),
    ] = None
    temperature: Annotated[
        float | None, Meta(description="The temperature of sampling. Default: 1; with 0 the likeliest token is always taken.")
    ] = None
    top_p: Annotated[float | None, Meta(description="Sample only among the likeliest tokens with this total probability.")] = (
        None
    )
    top_k: Annotated[Int64 | None, Meta(description="Sample only among this many of the likeliest tokens.")] = None
    seed: Annotated[
        Int64 | None, Meta(description="The seed of sampling; the same seed gives the same texts. Default: a new seed.")
    ] = None
    n: Annotated[
        Int64 | None, Meta(description="The number of texts for each prompt: samples, or the best beams. Default: 1.")
    ] = None
    beam_width: Annotated[Int64 | None, Meta(description="The number of beams of an exact search, in place of sampling.")] = (
        None
    )
    stop: Annotated[
        str | list[str] | None, Meta(description="A text ends before the first of these; up to 4, of 1 KB each.")
    ] = None
    stream: Annotated[bool | None, Meta(description="Send pieces of the texts as server-sent events.")] = None
    stream_options: StreamOptions | None = None
    response_format: Annotated[
        ResponseFormat | None,
        Meta(description="With `json_schema`, texts are instances of that schema; with `json_object`, JSON objects."),
    ] = None
    guided_json: Annotated[
        dict[str, Any] | bool | str | None, Meta(description="A JSON Schema, or its text: texts are its instances.")
    ] = None
    guided_regex: Annotated[str | None, Meta(description="A pattern that the whole text matches.")] = None
    guided_choice: Annotated[list[str] | None, Meta(description="The text is one of these.")] = None
    guided_template: Annotated[
        list[Any] | None,
        Meta(
            description="Parts of the text: a text, or an object with one of `regex`, `json_schema`, `choices`, `template`, "
            "`free_text` (an object with `stop`, `max_length`)."
        ),
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, Meta(description="A constraint as vLLM names it: `json`, `regex`, `choice` or `json_object`.")
    ] = None
    retokenize: Annotated[bool | None, Meta(description="Append forced text at once: fewer calls of the model.")] = None
    user: Annotated[str | None, Meta(description="Changes nothing.")] = None
    best_of: Int64 | None = None
    echo: bool | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | Int64 | None = None
    presence_penalty: float | None = None
    suffix: str | None = None
    top_logprobs: Int64 | None = None

    def check(self) -> None:
        """Raise BodyError for fields that contradict each other, or that would change nothing."""
        for name, neutral in _NEUTRAL.items():
            if (value := getattr(self, name)) not in neutral:
                raise BodyError(f"{name}: not supported: leave it out (it is {short_repr(value)})", param=name)
        if self.beam_width is not None:
            for name in ("temperature", "top_p", "top_k", "seed"):
                if getattr(self, name) not in (None, 0):
                    raise BodyError(
                        f"{name}: is for sampling, but beam_width asks for a beam search: leave one of them out", param=name
                    )
            if self.stream:
                raise BodyError("stream: a beam search knows its texts only at the end: leave stream out", param="stream")
            if self.num_texts > self.beam_width:
                raise BodyError(f"n: at most beam_width, {self.beam_width}, not {self.num_texts}", param="n")
        elif self.temperature == 0 and self.num_texts > 1:
            raise BodyError("n: temperature 0 gives only one text: raise the temperature, or set beam_width", param="n")
        if self.num_texts < 1:
            raise BodyError(f"n: expected at least 1, not {self.num_texts}", param="n")
        if len(self.stops) > 4:
            raise BodyError(f"stop: expected up to 4 texts, not {len(self.stops)}", param="stop")

    @property
    def num_texts(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def stops(self) -> tuple[str, ...]:
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def sampling(self) -> Sampling | None:
        """Return how texts are drawn, or None for a search. Raises ArgumentError."""
        if self.beam_width is not None or self.temperature == 0:
            return None
        return Sampling(temperature=1.0 if self.temperature is None else self.temperature, top_k=self.top_k, top_p=self.top_p)

    @property
    def constraint_field(self) -> str | None:
        """Return the path of the constraint in the body, or None without a constraint."""
        return next(iter(self._constraints), None)

    @property
    def constraint(self) -> str:
        """Return the constraint in JSON, for `constraint_from_json`. Raises BodyError for several, or an unknown format."""
        constraints = self._constraints
        if len(constraints) > 1:
            raise BodyError(
                "a text has one constraint: name one of response_format, guided_json, guided_regex, guided_choice, "
                "guided_template and the fields of structured_outputs"
            )
        return json.dumps(next(iter(constraints.values()), {"free_text": {}}))

    @property
    def _constraints(self) -> dict[str, dict[str, object]]:
        """Return the constraints in JSON, by the path of their field. Raises BodyError for an unknown or incomplete format."""
        kinds = {"json": "json_schema", "regex": "regex", "choice": "choices", "template": "template"}
        guided = {f"guided_{name}": (kind, getattr(self, f"guided_{name}")) for name, kind in kinds.items()}
        constraints: dict[str, dict[str, object]] = {
            name: {kind: value} for name, (kind, value) in guided.items() if value is not None
        }
        form = self.response_format
        if form is not None and form.type == "json_schema":
            if form.json_schema is None:
                raise BodyError("response_format: json_schema needs the field json_schema", param="response_format")
            try:  # what is read as it is has not been decoded
                schema = bytes(form.json_schema.schema).decode()
            except UnicodeDecodeError as error:
                raise BodyError(f"response_format: the schema is not UTF-8 ({error})", param="response_format") from None
            constraints["response_format.json_schema.schema"] = {"json_schema": schema}
        elif form is not None and form.type == "json_object":
            constraints["response_format"] = {"json_schema": {"type": "object"}}
        elif form is not None and form.type != "text":
            message = f"response_format: type {short_repr(form.type)}: expected json_schema, json_object or text"
            raise BodyError(message, param="response_format")
        return constraints | (self.structured_outputs.constraints() if self.structured_outputs is not None else {})


class CompletionBody(TextOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for texts after prompts."""

    prompt: Annotated[
        str | list[str | Int64 | list[Int64]],
        Meta(description="A text or a list of tokens, or a list of several texts or several lists of tokens."),
    ]

    @property
    def prompts(self) -> list[str | list[int]]:
        """Return each prompt, a text or tokens. Raises BodyError for a list that mixes them."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        tokens = [part for part in self.prompt if isinstance(part, int)]
        if tokens and len(tokens) == len(self.prompt):
            return [tokens]
        prompts = [part for part in self.prompt if not isinstance(part, int)]
        if not prompts or len(prompts) < len(self.prompt):
            raise BodyError("prompt: expected a text, a list of tokens, or a list of several of either", param="prompt")
        return prompts


class TextPart(Struct, frozen=True, kw_only=True, tag="text", tag_field="type"):
    text: str


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of a chat."""

    role: str
    content: Annotated[str | list[TextPart], Meta(description="Text, or a list of parts of type `text`.")]
    name: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the message as chat templates read it."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": content, **({} if self.name is None else {"name": self.name})}


class ChatBody(TextOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for the next message of a chat."""

    messages: list[Message]
    max_completion_tokens: Annotated[Int64 | None, Meta(description="As `max_tokens`.")] = None

    def check(self) -> None:
        """Raise BodyError as `TextOptions.check` does, and for two limits of one text."""
        super().check()
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            message = "max_completion_tokens: max_tokens limits the same text: leave one of them out"
            raise BodyError(message, param="max_completion_tokens")


class ItemCompletionBody(RequestFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for items, as `/v1/recommend` answers it, for clients of OpenAI."""

    model: str
    prompt: Annotated[list[Id] | str, Meta(description="The history: item ids, oldest first; empty for none.")]
    n: Annotated[Int64 | None, Meta(description="The largest number of items to return. Default: 1.")] = None
    beam_width: Annotated[Int64 | None, Meta(description="`num_beams` of `/v1/recommend`.")] = None
    max_tokens: Annotated[
        Int64 | None, Meta(description="This field has no effect, because the number of codes of an item is fixed.")
    ] = None
    temperature: Annotated[float | None, Meta(description="Must be 0 or absent, because items are ranked, not sampled.")] = None
    stream: bool | None = None

    def to_recommend(self) -> RecommendBody:
        """Return the same request for `/v1/recommend`. Raises BodyError."""
        if self.stream:
            raise BodyError("stream: items are known only at the end of the search: leave stream out", param="stream")
        if self.temperature:
            raise BodyError("temperature: items are ranked, not drawn: leave it out", param="temperature")
        if isinstance(self.prompt, str) and self.prompt:
            raise BodyError("prompt: expected a list of item ids, the history", param="prompt")
        return RecommendBody(
            history=[] if isinstance(self.prompt, str) else self.prompt,
            num_items=1 if self.n is None else self.n,
            num_beams=self.beam_width,
            **{name: getattr(self, name) for name in RequestFields.__struct_fields__},
        )


class Usage(Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionChoice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    index: int
    text: str
    finish_reason: Annotated[
        str | None, Meta(description="`stop`: the text is complete, or ended at a stop. `length`: it was cut off.")
    ]
    logprobs: None
    item_id: Annotated[ItemId | None, Meta(description="For items: the id of the item; `text` has it as text.")] = None
    score: Annotated[float | None, Meta(description="For items: the score, as in `scores` of `/v1/recommend`.")] = None


class SchemaNoteBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A keyword of a JSON Schema that the texts do not hold to in full."""

    treatment: Annotated[
        str, Meta(description="`ignored`: texts need not obey the keyword. `bounded`: some valid texts are never written.")
    ]
    keyword: Annotated[str, Meta(description="The keyword; empty for a value that the schema does not describe.")]
    pointer: Annotated[str, Meta(description="The JSON pointer of the schema that has it.")]
    depth: Annotated[
        int | None, Meta(description="The depth to which values nest, or the number of times that a `$ref` is followed.")
    ] = None


_Notes = Annotated[
    list[SchemaNoteBody] | msgspec.UnsetType,
    Meta(description="For a JSON Schema: its keywords that were ignored or bounded, if there are any."),
]


class CompletionAnswer(Struct, frozen=True, kw_only=True):
    """Texts, or items, best first."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: str = "text_completion"
    system_fingerprint: Annotated[str | None, Meta(description="For items: the version of the index.")] = None
    usage: Annotated[Usage | None, Meta(description="Tokens of texts; null for items.")] = None
    schema_notes: _Notes = msgspec.UNSET


class ChatMessage(Struct, frozen=True, kw_only=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(Struct, frozen=True, kw_only=True):
    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: None = None


class ChatAnswer(Struct, frozen=True, kw_only=True):
    """The next message of a chat."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    schema_notes: _Notes = msgspec.UNSET
