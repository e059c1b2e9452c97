"""Generates texts of a language model under constraints.

Shapes: B prompts, T tokens of each, V tokens of the model, D hidden.
"""

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import torch

from leafbeam.automata import Automaton
from leafbeam.decode import Sampling, SequenceSampler, SequenceSearch
from leafbeam.errors import ArgumentError, counted
from leafbeam.model import TextTokens, Transformer
from leafbeam.model.weights import read_hf
from leafbeam.ops.head import HeadCosts
from leafbeam.text.constraints import TextConstraint, compiled
from leafbeam.text.request import DEFAULT_MAX_TOKENS, Generation, GenerationResult, TextRequest, can_run_together
from leafbeam.text.run import TextBatch, TextRun
from leafbeam.text.stepwise_run import StepwiseRun
from leafbeam.text.tokenizer import TextTokenizer

Prompt = str | Sequence[int]


class GenerateOptions(TypedDict, total=False):
    """The keyword arguments of `TextGenerator.generate`, which say how texts are searched for or drawn."""

    max_tokens: int | None
    num_beams: int
    scoring: Literal["full", "allowed"]
    sampling: Sampling | None
    num_samples: int
    seed: int | Sequence[int]
    stop: Sequence[str]
    retokenize: bool


def generate(
    model: Transformer | str | PathLike[str],
    tokenizer: object,
    constraint: TextConstraint | Sequence[TextConstraint],
    prompts: Sequence[Prompt],
    **options: Unpack[GenerateOptions],
) -> GenerationResult:
    """Generate the texts of a language model after each prompt, under a constraint.

    This is `TextGenerator.generate` in one call. For several calls make a `TextGenerator`, which reads the model and
    its vocabulary once (0.1 s or more). For models of other kinds use
    `leafbeam.integrations.transformers.ConstraintLogitsProcessor`.

    Args:
        model: A `Transformer`, or the directory of a decoder in Hugging Face's format.
        tokenizer: A `TextTokenizer`, or a fast tokenizer of transformers; None takes the one in the directory.
        constraint: One constraint for all prompts, or one for each.
        prompts: Texts, or lists of tokens.
        options: Those of `TextGenerator.generate`.

    Raises:
        CheckpointError: If the directory is unusable.
        ArgumentError: If the model is of another kind; otherwise as for `TextGenerator.generate`.
        AutomatonError: If the constraint is invalid.

    Examples:
        >>> result = leafbeam.generate("Qwen3-0.6B", None, Choices(texts=["lamp", "cup"]), ["One word: "])      # doctest: +SKIP
        >>> result.texts[0][0].text                                                                            # doctest: +SKIP
        'lamp'
    """
    if isinstance(model, str | PathLike):
        spelled = TextTokenizer.load(model) if tokenizer is None else TextTokenizer.of(tokenizer)
        generator = TextGenerator(_read_model(Path(model)), spelled)
    elif isinstance(model, Transformer):  # pyright: ignore[reportUnnecessaryIsInstance]
        generator = TextGenerator(model, TextTokenizer.of(tokenizer))
    else:
        raise ArgumentError(
            f"the model is {type(model).__name__}: expected leafbeam's Transformer, or the directory of a decoder; for "
            "a model of transformers use leafbeam.integrations.transformers.ConstraintLogitsProcessor"
        )
    return generator.generate(prompts, constraint, **options)


def _read_model(place: Path) -> Transformer:
    """Load a directory's model on the CPU, to compute in float32."""
    vocabulary = None
    if not (place / "leafbeam.json").exists():
        size = read_hf(place).get("vocab_size")
        # Without a usable size, from_pretrained refuses the config by name.
        vocabulary = TextTokens(size=size if isinstance(size, int) and size > 0 else 1, num_tokens=1)
    return Transformer.from_pretrained(place, vocabulary=vocabulary, dtype=torch.float32).store_bfloat16()


class TextGenerator:
    """A causal language model and its tokenizer. Every text obeys its constraint, or can be completed if it was cut off.

    Where that is cheaper, only the logits of legal tokens are computed (`ops.head`); of a model with a soft cap, always all.
    Tokens without an alternative are appended in one pass, even if other texts of the batch have a choice (jump-forward
    decoding, XGrammar, section 3.4, over tokens).

    Args:
        model: The model. On a CUDA device, automata and beams stay there too, if the tokenizer has one end token that is not
            text (`SequenceSearch`); otherwise, and for drawn texts, hidden states are copied to the host.
        tokenizer: Its tokenizer.
        costs: The measured costs of this machine, which decide how the head's logits are computed; None uses estimates.

    Raises:
        CheckpointError: If the tokenizer has more tokens than the model.

    Examples:
        >>> generator = TextGenerator.load("Qwen3-0.6B")                                            # doctest: +SKIP
        >>> result = generator.generate(["A lamp as JSON: "], JsonSchema(schema=schema))            # doctest: +SKIP
        >>> result.texts[0][0].text                                                                 # doctest: +SKIP
        '{"name":"red lamp","price":12}'
    """

    def __init__(self, model: Transformer, tokenizer: TextTokenizer, *, costs: HeadCosts | None = None) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.num_tokens = model.config.vocab_size
        self.tokens, self._costs = tokenizer.trie(self.num_tokens), costs

    def __repr__(self) -> str:
        return f"TextGenerator({counted(self.model.config.num_hidden_layers, 'layer')}, {self.tokenizer!r})"

    @classmethod
    def load(cls, directory: str | PathLike[str]) -> "TextGenerator":
        """Load the directory of a decoder of Hugging Face with its tokenizer.json, in float32 on the CPU.

        Raises:
            CheckpointError: If the directory is unusable.
        """
        place = Path(directory)
        return cls(_read_model(place), TextTokenizer.load(place))

    def compile(self, constraint: TextConstraint) -> Automaton:
        """Return the automaton of a constraint, for many calls of `generate`. Most constraints take milliseconds.

        Raises:
            AutomatonError: If the constraint is invalid.
        """
        return compiled(constraint, self.tokens)

    def generate(
        self,
        prompts: Sequence[Prompt],
        constraint: TextConstraint | Sequence[TextConstraint],
        *,
        max_tokens: int | None = None,
        num_beams: int = 1,
        scoring: Literal["full", "allowed"] = "allowed",
        sampling: Sampling | None = None,
        num_samples: int = 1,
        seed: int | Sequence[int] = 0,
        stop: Sequence[str] = (),
        retokenize: bool = False,
    ) -> GenerationResult:
        """Return the most likely texts after each prompt that a search of `num_beams` beams finds; one beam is greedy.

        This costs a pass over the prompts, and at most max_tokens passes over B x num_beams tokens.

        Args:
            prompts: Texts, or lists of tokens.
            constraint: One constraint for all prompts, or one for each.
            max_tokens: The largest number of tokens of a text, the end token included; None is `default_max_tokens`.
            num_beams: The number of texts of each prompt.
            scoring: Log-softmax over the legal tokens ("allowed"), or over all of them ("full"), which multiplies the whole
                head. With one beam both give the same text.
            sampling: If given, `num_samples` texts are drawn for each prompt, independent of each other.
            num_samples: The number of drawn texts.
            seed: One seed for all prompts, or one for each. What is drawn for a prompt depends on its seed alone, not on the
                other prompts.
            stop: Texts at which generation stops: a text is cut off before the first of them. This needs one beam, or
                `sampling`.
            retokenize: If true, text with which every completion begins is appended at once, in the tokens that the
                tokenizer itself would choose. The two tokens before it are tokenised again with it, and may change.
                This saves calls of the model, but gives a text that the model may not have chosen token by token. It
                needs one beam, or sampling, and the scoring "allowed".

        Raises:
            ArgumentError: If there is no prompt, or one is empty or too long.
            AutomatonError: If a constraint is invalid.
        """
        if isinstance(prompts, str) or not len(prompts):
            raise ArgumentError(f"prompts are {prompts!r}: expected a list of at least one text")
        if sampling is None and num_samples != 1:
            raise ArgumentError(f"num_samples is {num_samples} without sampling: expected num_beams, or a Sampling")
        if sampling is not None and num_beams != 1:
            raise ArgumentError(f"num_beams is {num_beams} with sampling: expected num_samples, the texts to draw")
        constraints = constraint if isinstance(constraint, Sequence) else [constraint] * len(prompts)
        seeds = [seed] * len(prompts) if isinstance(seed, int) else seed
        if len(constraints) != len(prompts) or len(seeds) != len(prompts):
            raise ArgumentError(
                f"{counted(len(constraints), 'constraint')} and {counted(len(seeds), 'seed')} for "
                f"{counted(len(prompts), 'prompt')}: expected one for each"
            )
        automata = {id(one): self.compile(one) for one in constraints}
        token_rows = [self.tokens_of(prompt) for prompt in prompts]
        run = self.start(
            [
                TextRequest(
                    prompt=tokens,
                    automaton=automata[id(one)],
                    max_tokens=self.default_max_tokens(token_rows) if max_tokens is None else max_tokens,
                    num_texts=num_beams if sampling is None else num_samples,
                    scoring=scoring,
                    sampling=sampling,
                    seed=drawn_with,
                    stop=tuple(stop),
                    retokenize=retokenize,
                )
                for tokens, one, drawn_with in zip(token_rows, constraints, seeds, strict=True)
            ]
        )
        while run.advance():
            pass
        notes = tuple(automata[id(one)].notes for one in constraints)
        return GenerationResult(texts=run.texts, model_calls=run.model_calls, calls_saved=run.calls_saved, notes=notes)

    def stream(
        self,
        prompt: Prompt,
        constraint: TextConstraint,
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        retokenize: bool = False,
    ) -> "TextStream":
        """Return the text after a prompt, greedy or drawn, piece by piece.

        Joined, the pieces are the text of `generate`; the arguments and errors are the same too.

        Examples:
            >>> for piece in (stream := generator.stream("A lamp as JSON: ", constraint)):    # doctest: +SKIP
            ...     print(piece, end="", flush=True)
            >>> stream.generation.finished                                                    # doctest: +SKIP
            True
        """
        tokens = self.tokens_of(prompt)
        request = TextRequest(
            prompt=tokens,
            automaton=self.compile(constraint),
            max_tokens=self.default_max_tokens([tokens]) if max_tokens is None else max_tokens,
            sampling=sampling,
            seed=seed,
            stop=tuple(stop),
            retokenize=retokenize,
        )
        return TextStream(self.start([request]))

    def tokens_of(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the tokens of a prompt."""
        return tuple(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)

    def default_max_tokens(self, prompts: Sequence[Sequence[int]]) -> int:
        """Return the default token limit of texts after these prompts: 256, or the positions that the model has left.

        Raises:
            ArgumentError: If a prompt leaves no position.
        """
        self._check_positions(prompts, 1)
        return min(DEFAULT_MAX_TOKENS, self.model.config.max_position_embeddings - max(map(len, prompts)) + 1)

    def check(self, request: TextRequest) -> None:
        """Check a request as `start` does, and raise its ArgumentError."""
        if not 0 <= min(request.prompt) <= max(request.prompt) < self.num_tokens:
            raise ArgumentError(f"a prompt has a token outside the model's 0 to {self.num_tokens - 1:,}")
        self._check_positions([request.prompt], request.max_tokens)
        self._check_spelling(request)

    def _check_spelling(self, request: TextRequest) -> None:
        if request.retokenize and self.tokenizer.spell(b"a") is None:
            raise ArgumentError("the tokenizer adds a space or other text to what it reads: leave out retokenize")

    def has_positions_for(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> bool:
        """Return whether the model can read the longest of these prompts with a text of `max_tokens` tokens."""
        return max(map(len, prompts)) + max_tokens - 1 <= self.model.config.max_position_embeddings

    def _check_positions(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
        if not self.has_positions_for(prompts, max_tokens):
            longest, positions = max(map(len, prompts)), self.model.config.max_position_embeddings
            raise ArgumentError(
                f"a prompt of {counted(longest, 'token')} and max_tokens={max_tokens:,} exceed the model's "
                f"{counted(positions, 'position')}: "
                "shorten the prompt, or lower max_tokens"
            )

    def start(self, requests: Sequence[TextRequest]) -> TextBatch:
        """Start a batch that runs call by call; `can_run_together` says which requests may share one.

        This costs a pass over the prompts.

        Raises:
            ArgumentError: If the model cannot read a prompt, or one is too long.
        """
        assert can_run_together(requests)
        first, max_tokens = requests[0], max(request.max_tokens for request in requests)
        rows = [request.prompt for request in requests]
        longest = max(map(len, rows))
        self._check_positions(rows, max_tokens)
        for request in requests:
            self._check_spelling(request)
        search, head = self._search(requests, max_tokens), None
        if not self.model.logit_cap:
            weight_VD = self.model.head_weight.detach()
            head = weight_VD if search.backend == "triton" else weight_VD.float().cpu().numpy()
        tokens_BT = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=self.model.device)
        lengths_B = torch.tensor([len(row) for row in rows], device=self.model.device)
        if first.is_stepwise and first.scoring == "allowed":
            texts = self.model.start_texts(tokens_BT, lengths_B, num_texts=first.num_texts, max_tokens=max_tokens - 1)
            constraint = search.constraint(len(rows), head=head, costs=self._costs)
            return StepwiseRun(requests, texts, constraint, self.tokenizer, logits=self.model.logits if head is None else None)
        vocabulary = TextTokens(size=self.num_tokens, num_tokens=max_tokens)
        session = self.model.start(tokens_BT, lengths_B, beams=first.num_texts, vocabulary=vocabulary, hidden=head is not None)
        run = search.start(session.step_fn, len(rows), head=head, costs=self._costs, suffix_fn=session.suffix_fn)
        return TextRun(requests, run, self.tokenizer)

    def _search(self, requests: Sequence[TextRequest], max_tokens: int) -> SequenceSearch:
        first, automata = requests[0], [request.automaton for request in requests]
        if first.sampling is None:
            return SequenceSearch(
                automata,
                end_code=self.tokenizer.ends,
                num_codes=self.num_tokens,
                num_beams=first.num_texts,
                max_tokens=max_tokens,
                scoring=first.scoring,
                device=self.model.device,
            )
        return SequenceSampler(
            automata,
            end_code=self.tokenizer.ends,
            num_codes=self.num_tokens,
            sampling=[request.sampling for request in requests if request.sampling is not None],
            num_samples=first.num_texts,
            max_tokens=max_tokens,
            seed=[request.seed for request in requests],
        )


class TextStream:
    """The pieces of one text. Each is valid Unicode: the bytes of an incomplete character are held back.

    `generation` is the text so far, and the whole text at the end of the iteration.

    Args:
        run: The batch of this text.
    """

    def __init__(self, run: TextBatch) -> None:
        self._run = run

    def __iter__(self) -> Iterator[str]:
        while self._run.advance():
            (piece,) = self._run.pieces(0)
            if piece:
                yield piece

    @property
    def generation(self) -> Generation:
        ((generation,),) = self._run.texts
        return generation
