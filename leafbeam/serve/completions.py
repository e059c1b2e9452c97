"""`POST /v1/completions`, `POST /v1/chat/completions` and `GET /v1/models`: the routes that OpenAI's clients use."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from leafbeam.automata import Automaton
from leafbeam.automata.json_notes import SchemaNote
from leafbeam.engine import Engine, Result
from leafbeam.engine.request import short_repr
from leafbeam.errors import ArgumentError, AutomatonError, counted
from leafbeam.serve import exchange
from leafbeam.serve.completion_schema import (
    ChatAnswer,
    ChatBody,
    ChatChoice,
    ChatMessage,
    CompletionAnswer,
    CompletionBody,
    CompletionChoice,
    ItemCompletionBody,
    ModelName,
    SchemaNoteBody,
    TextOptions,
    Usage,
)
from leafbeam.serve.engine_routes import request_of, result_for
from leafbeam.serve.errors import BodyError, Handler, answering, openai_error, openai_error_response
from leafbeam.serve.exchange import Bounds, decode_body, json_response, read_body, result_of
from leafbeam.serve.metrics import Metrics, num_tokens
from leafbeam.serve.schema import ModelEntry, ModelsAnswer
from leafbeam.serve.text_events import EventStream, TextEvents
from leafbeam.text import Generation, TextGenerator, TextRequest, TextService
from leafbeam.text.worker import Texts

ITEMS = "items"
_MODEL = msgspec.json.Decoder(ModelName)
_COMPLETION = msgspec.json.Decoder(CompletionBody)
_CHAT = msgspec.json.Decoder(ChatBody)
_ITEMS = msgspec.json.Decoder(ItemCompletionBody)


class CompletionRoutes:
    """The routes of a language model and of an engine; a request's `model` says which of them answers."""

    def __init__(self, engine: Engine | None, text: TextService | None, metrics: Metrics, bounds: Bounds) -> None:
        self._engine, self._text, self._metrics, self._bounds = engine, text, metrics, bounds
        self._started = int(time.time())
        self._names = [*([] if text is None else [text.name]), *([] if engine is None else [ITEMS])]
        if len(set(self._names)) < len(self._names):
            raise ArgumentError(f"the language model is called {ITEMS!r}, the name of the recommender: rename its directory")

    @property
    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by operation."""
        return {
            "complete": self._counted(self._complete),
            "chat": self._counted(self._chat),
            "list_models": self._models,
        }

    async def _models(self, http: HttpRequest) -> Response:
        return json_response(ModelsAnswer(data=[ModelEntry(id=name, created=self._started) for name in self._names]))

    def _counted(self, handler: Handler) -> Handler:
        """Return a route that answers failures in OpenAI's shape, and counts every request."""
        answered = answering(handler, openai_error_response)

        async def respond(http: HttpRequest) -> Response:
            began = time.perf_counter()
            response = await answered(http)
            self._metrics.observe_completion(response.status_code, time.perf_counter() - began)
            return response

        return respond

    async def _complete(self, http: HttpRequest) -> Response:
        body, kind = await read_body(http, self._bounds), http.headers.get("content-type", "")
        if (text := self._service(body, kind)) is None:
            return await self._recommend(http, decode_body(body, kind, _ITEMS))
        options = decode_body(body, kind, _COMPLETION)
        options.check()
        prompts, num_rows = options.prompts, text.worker.settings.max_rows
        if len(prompts) * options.num_texts > num_rows:
            raise BodyError(
                f"prompt: all prompts together may ask for at most {counted(num_rows, 'text')} (prompts times n)",
                param="prompt",
            )
        plan = _Plan(name=text.name, options=options, max_tokens=options.max_tokens, is_chat=False)
        return await self._generate(http, text, plan, lambda: [text.tokenize(prompt) for prompt in prompts])

    async def _chat(self, http: HttpRequest) -> Response:
        body, kind = await read_body(http, self._bounds), http.headers.get("content-type", "")
        if (text := self._service(body, kind)) is None:
            raise BodyError(f"model: {ITEMS!r} recommends items: ask /v1/completions or /v1/recommend for them", param="model")
        options = decode_body(body, kind, _CHAT)
        options.check()
        messages = [message.to_dict() for message in options.messages]
        max_tokens = options.max_tokens if options.max_completion_tokens is None else options.max_completion_tokens
        plan = _Plan(name=text.name, options=options, max_tokens=max_tokens, is_chat=True)
        return await self._generate(http, text, plan, lambda: [text.tokenize_chat(messages)])

    def _service(self, body: bytes, kind: str) -> TextService | None:
        """Return the language model that a body names; None for the recommender. Raises BodyError for another name."""
        name = decode_body(body, kind, _MODEL).model
        if self._text is not None and name == self._text.name:
            return self._text
        if self._engine is not None and name == ITEMS:
            return None
        known = ", ".join(map(repr, self._names))
        message = f"model: {short_repr(name)} is not served here, expected {known}"
        raise BodyError(message, status=HTTPStatus.NOT_FOUND, reason="model_not_found", param="model")

    async def _recommend(self, http: HttpRequest, body: ItemCompletionBody) -> Response:
        """Answer with items as choices."""
        engine = self._engine
        assert engine is not None
        arrived, request = engine.clock(), request_of(body.to_recommend())
        result = await result_for(http, request, arrived, engine, self._metrics, self._bounds)
        return json_response(_items_answer(result))

    async def _generate(
        self, http: HttpRequest, text: TextService, plan: "_Plan", tokenize: "Callable[[], list[Future[tuple[int, ...]]]]"
    ) -> Response:
        """Prepare in threads, queue, wait for the texts or for the first piece of one."""
        worker = text.worker
        deadline, answer_s = worker.clock() + worker.settings.timeout_s, worker.settings.timeout_s + self._bounds.answer_s
        gone = asyncio.ensure_future(exchange.disconnected(http))
        try:
            worker.check_admission()
            automaton = await self._compiled(text, plan.options, gone)
            with text.preparing():
                prompts = [await result_of(tokens, gone, worker.settings.timeout_s) for tokens in tokenize()]
            requests = plan.requests(prompts, automaton, text.generator)
            if plan.options.stream:
                events = TextEvents(asyncio.get_running_loop())
                events.follow(worker.submit(requests, deadline=deadline, on_pieces=events.put))
                await events.first(gone, answer_s)
                answer = _Answer(plan, sum(map(len, prompts)), automaton.notes)
                return EventStream(self._chunks(answer, events), events)
            job = worker.submit(requests, deadline=deadline)
            texts = await result_of(job.texts, gone, answer_s)
        finally:
            gone.cancel()
        self._metrics.text_tokens.inc(num_tokens(texts))
        return json_response(_Answer(plan, sum(map(len, prompts)), automaton.notes).whole(texts))

    async def _compiled(self, text: TextService, options: TextOptions, gone: "asyncio.Future[None]") -> Automaton:
        """Return the automaton of a body's constraint. The pointer of an AutomatonError is the path in the body."""
        try:
            return await result_of(text.compile(options.constraint), gone, text.worker.settings.timeout_s)
        except AutomatonError as error:
            if (field := options.constraint_field) is None:
                raise
            inside = (
                error.pointer
                if field.startswith(("response_format", "guided_json", "structured_outputs.json")) and error.pointer is not None
                else ""
            )
            raise AutomatonError(str(error), pointer=f"{field}{inside}") from error

    async def _chunks(self, answer: "_Answer", events: TextEvents) -> AsyncGenerator[object]:
        """Yield the chunks of a stream: one for each piece of text, and one with the reason why each text ended."""
        try:
            for chunk in answer.opening():
                yield chunk
            async for prompt, pieces in events.pieces():
                for k, piece in enumerate(pieces):
                    if piece:
                        yield answer.piece(prompt, k, piece)
            self._metrics.text_tokens.inc(num_tokens(events.texts))
            for chunk in answer.closing(events.texts):
                yield chunk
        except Exception as error:  # the status has been sent, and the worker has logged what is no LeafbeamError
            yield openai_error(error)[1]


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """A request for texts: the model's name, the body's options, the tokens of a text, whether the answer is a message."""

    name: str
    options: TextOptions
    max_tokens: int | None
    is_chat: bool

    def requests(self, prompts: Sequence[tuple[int, ...]], automaton: Automaton, generator: TextGenerator) -> list[TextRequest]:
        """Return a request for each prompt. Raises ArgumentError."""
        options, seed = self.options, self.options.seed
        max_tokens = generator.default_max_tokens(prompts) if self.max_tokens is None else self.max_tokens
        return [
            TextRequest(
                prompt=prompt,
                automaton=automaton,
                max_tokens=max_tokens,
                num_texts=options.num_texts if options.beam_width is None else options.beam_width,
                sampling=options.sampling,
                seed=secrets.randbits(63) if seed is None else seed,
                stop=options.stops,
                retokenize=bool(options.retokenize),
            )
            for prompt in prompts
        ]


class _Answer:
    """Texts in the JSON of OpenAI, whole or in chunks. Choice n * p + k is text k of prompt p."""

    def __init__(self, plan: _Plan, prompt_tokens: int, notes: Sequence[SchemaNote]) -> None:
        self._notes = [msgspec.convert(note.as_json(), SchemaNoteBody) for note in notes]
        self._plan, self._prompt_tokens, self._num_texts = plan, prompt_tokens, plan.options.num_texts
        self._id = f"{'chatcmpl' if plan.is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def whole(self, texts: Texts) -> CompletionAnswer | ChatAnswer:
        flat = [generation for generations in texts for generation in generations[: self._num_texts]]
        shared: dict[str, Any] = {
            "id": self._id, "created": self._created, "model": self._plan.name, "usage": self._usage(texts)
        }  # fmt: skip
        if self._notes:
            shared["schema_notes"] = self._notes
        if self._plan.is_chat:
            messages = [
                ChatChoice(index=index, message=ChatMessage(content=text.text), finish_reason=_reason(text))
                for index, text in enumerate(flat)
            ]
            return ChatAnswer(choices=messages, **shared)
        choices = [
            CompletionChoice(index=index, text=text.text, finish_reason=_reason(text), logprobs=None)
            for index, text in enumerate(flat)
        ]
        return CompletionAnswer(choices=choices, **shared)

    def opening(self) -> list[dict[str, object]]:
        if not self._plan.is_chat:
            return []
        return [self._chunk([self._choice(index, {"role": "assistant", "content": ""})]) for index in range(self._num_texts)]

    def piece(self, prompt: int, k: int, piece: str) -> dict[str, object]:
        content = {"content": piece} if self._plan.is_chat else piece
        return self._chunk([self._choice(prompt * self._num_texts + k, content)])

    def closing(self, texts: Texts) -> list[dict[str, object]]:
        flat = [generation for generations in texts for generation in generations]
        nothing: dict[str, str] | str = {} if self._plan.is_chat else ""
        chunks = [self._chunk([self._choice(index, nothing, _reason(text))]) for index, text in enumerate(flat)]
        if self._notes:
            chunks[0]["schema_notes"] = self._notes
        options = self._plan.options.stream_options
        if options is not None and options.include_usage:
            chunks.append({**self._chunk([]), "usage": self._usage(texts)})
        return chunks

    def _chunk(self, choices: Sequence[Mapping[str, object]]) -> dict[str, object]:
        kind = "chat.completion.chunk" if self._plan.is_chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._plan.name, "choices": choices}

    def _choice(self, index: int, content: dict[str, str] | str, reason: str | None = None) -> dict[str, object]:
        name = "delta" if self._plan.is_chat else "text"
        return {"index": index, name: content, "logprobs": None, "finish_reason": reason}

    def _usage(self, texts: Texts) -> Usage:
        tokens = num_tokens(texts)
        return Usage(prompt_tokens=self._prompt_tokens, completion_tokens=tokens, total_tokens=self._prompt_tokens + tokens)


def _reason(generation: Generation) -> str:
    return "stop" if generation.finished or generation.stop is not None else "length"


def _items_answer(result: Result) -> CompletionAnswer:
    choices = [
        CompletionChoice(index=index, text=str(item_id), finish_reason="stop", logprobs=None, item_id=item_id, score=score)
        for index, (item_id, score) in enumerate(zip(result.item_ids, result.scores, strict=True))
    ]
    return CompletionAnswer(
        id=f"cmpl-{secrets.token_hex(12)}",
        created=int(time.time()),
        model=ITEMS,
        choices=choices,
        system_fingerprint=result.index_version,
    )
