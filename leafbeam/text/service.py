"""A language model that serves texts to clients that are not trusted."""

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from os import PathLike
from pathlib import Path

from leafbeam.automata import Automaton
from leafbeam.decode import Sampling
from leafbeam.errors import ArgumentError, AutomatonError, OverloadedError
from leafbeam.text.chat_template import ChatTemplate
from leafbeam.text.compiler import CompileLimits, ConstraintCompiler
from leafbeam.text.generator import Prompt, TextGenerator
from leafbeam.text.settings import TextSettings
from leafbeam.text.worker import TextWorker

_MAX_COMPILING = 8  # of up to `CompileLimits.max_seconds` each
_PLAIN = '{"free_text": {}}'  # what a request without a constraint asks for


class TextService:
    """A language model as a server uses it: its name, its worker, the compiler of its constraints and its chat
    template.

    `load` reads a directory; `start` and `stop` run the service. Tokenising and compiling have a thread each, so
    neither waits for the other, and the caller's thread waits for neither.

    Args:
        name: The name under which clients ask for the model.
        generator: The model and its tokenizer.
        chat: The chat template; None refuses chats.
        settings: The limits of requests and batches.
        limits: The limits of constraints.
    """

    def __init__(
        self,
        name: str,
        generator: TextGenerator,
        chat: ChatTemplate | None = None,
        *,
        settings: TextSettings | None = None,
        limits: CompileLimits | None = None,
    ) -> None:
        self.name, self.chat, self.generator = name, chat, generator
        self.worker = TextWorker(generator, settings)
        self.compiler = ConstraintCompiler(generator.tokens, limits, filled=generator.model.device.type == "cuda")
        self._tokenizing = ThreadPoolExecutor(1, "leafbeam-tokenize")
        self._compiling = ThreadPoolExecutor(1, "leafbeam-compile")
        self._num_preparing = 0
        self._compilations: dict[str, Future[Automaton]] = {}
        self._plain: Automaton | None = None

    def __repr__(self) -> str:
        return f"TextService({self.name!r}, {self.generator!r})"

    @classmethod
    def load(
        cls, directory: str | PathLike[str], *, settings: TextSettings | None = None, limits: CompileLimits | None = None
    ) -> "TextService":
        """Read a model's directory, whose name becomes the name of the model (see `TextGenerator.load`).

        Raises:
            CheckpointError: If the directory is unusable.
        """
        place = Path(directory)
        chat = ChatTemplate.load(place)
        return cls(place.resolve().name, TextGenerator.load(place), chat, settings=settings, limits=limits)

    def start(self) -> None:
        """Start the worker and the compiler, and run each kind of search once, so that no request waits for a compilation.

        This takes up to a minute on a machine's first run, and later a few calls of the model.

        Raises:
            LogitsError: If the model's logits are not finite.
        """
        try:
            self.compiler.start()
            self._warm_up()
        except BaseException:
            self.compiler.close()
            raise
        self.worker.start()

    def _warm_up(self) -> None:
        with suppress(AutomatonError):  # then a request says why
            self._plain = self.compiler.compile(_PLAIN)
        if self._plain is not None:
            generate = partial(self.generator.generate, [(0,)], self._plain, max_tokens=2)
            generate()
            generate(sampling=Sampling())
            generate(num_beams=2)
            generate(num_beams=2, scoring="full")

    def stop(self, grace_s: float = 30.0) -> None:
        """Refuse new texts, finish accepted ones within `grace_s` seconds, and end the threads and the compiler."""
        self.worker.stop(grace_s)
        self.compiler.close()
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        self._compiling.shutdown(wait=False, cancel_futures=True)

    def tokenize(self, prompt: Prompt) -> "Future[tuple[int, ...]]":
        """Return the tokens of a prompt, as a future."""
        return self._tokenizing.submit(self.generator.tokens_of, prompt)

    def tokenize_chat(self, messages: Sequence[Mapping[str, object]]) -> "Future[tuple[int, ...]]":
        """Return the tokens of a chat up to the assistant's next message, as a future.

        Raises:
            ArgumentError: If there is no chat template.
        """
        if self.chat is None:
            raise ArgumentError(f"the model {self.name!r} has no chat template beside its tokenizer: use /v1/completions")
        render, encode = self.chat.render, self.generator.tokenizer.encode
        return self._tokenizing.submit(lambda: tuple(encode(render(messages), add_special=False)))

    def compile(self, constraint: str) -> "Future[Automaton]":
        """Return the automaton of a constraint in JSON, as a future, which is done at once if the automaton is cached.

        It must be called from one thread only. The number of constraints that wait to be compiled has a limit of its
        own, so that they do not delay requests without a constraint or with a cached one.

        Raises:
            OverloadedError: If too many constraints wait.
        """
        found: Future[Automaton] = Future()
        if constraint == _PLAIN and self._plain is not None:
            found.set_result(self._plain)
            return found
        try:
            cached = self.compiler.cached(constraint)
        except AutomatonError as error:
            found.set_exception(error)
            return found
        if cached is not None:
            found.set_result(cached)
            return found
        shared = self._compilations.get(constraint)
        if shared is None:
            if len(self._compilations) >= _MAX_COMPILING:
                message = f"{_MAX_COMPILING} new constraints wait to be compiled already: try again later, or use a known one"
                raise OverloadedError(message, reason="compile_queue_full", retry_after_s=self.compiler.limits.max_seconds)
            shared = self._compilations[constraint] = self._compiling.submit(self.compiler.compile, constraint)
            shared.add_done_callback(lambda _: self._compilations.pop(constraint, None))
        shared.add_done_callback(lambda done: _pass_on(done, found))
        return found

    @contextmanager
    def preparing(self) -> Generator[None]:
        """Count a request as waiting while the block runs, in which it is tokenised. Only one thread may use this.

        Raises:
            OverloadedError: If the queue is full.
            UnavailableError: If the worker stops.
        """
        self.worker.check_admission(self._num_preparing)
        self._num_preparing += 1
        try:
            yield
        finally:
            self._num_preparing -= 1


def _pass_on(done: "Future[Automaton]", found: "Future[Automaton]") -> None:
    """Hand the compiled constraint to the next waiting request, if it is still connected."""
    if done.cancelled():
        found.cancel()
        return
    with suppress(InvalidStateError):
        if (error := done.exception()) is None:
            found.set_result(done.result())
        else:
            found.set_exception(error)
