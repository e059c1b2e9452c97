"""vLLM as the language model of a search, unmodified: its `LLM` in this process, or its HTTP server.

Every beam is a one-token request with `logprob_token_ids`, at most 128 of them; vLLM's prefix cache reads each prompt once.
Tested with vLLM 0.32.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from leafbeam.errors import ArgumentError, InferenceError, counted
from leafbeam.integrations.http_logprobs import HttpOptions, OpenAIServer
from leafbeam.integrations.logprobs import Answers, Logprobs, TokenQuery, answer_to, in_slices

# vLLM's MAX_LOGPROB_TOKEN_IDS.
MAX_TOKENS = 128
# vLLM: "Requested logprob_token_ids of length 200, which is greater than max allowed: 128".
_LIMIT = re.compile(r"(?:max|at most|limit|exceed|greater)[^\d]{0,40}(\d{1,9})?", re.ASCII | re.IGNORECASE)
# About as many log-probabilities as vLLM returns in the time that one more request of a batch takes it.
_TOKENS_A_REQUEST = 4096
# About as many requests of a batch as take the time of a batch of their own.
_REQUESTS_A_BATCH = 32


class VllmModel:
    """A `vllm.LLM` of this process, for one search at a time.

    Queries of more than 128 tokens are sent in slices, or for all log-probabilities, in a batch of their own, where that is
    cheaper and the engine allows it (`LLM(max_logprobs=-1)`).

    Args:
        llm: The engine.
        lora_request: The adapter to use, as for `LLM.generate`.

    Raises:
        ArgumentError: If the engine returns logits in place of log-probabilities.

    Examples:
        >>> model = VllmModel(LLM("Qwen3-sid", enable_prefix_caching=True))                          # doctest: +SKIP
        >>> LogprobBeamSearch(index, model, code_tokens=tokens, num_items=50).run(prompts)           # doctest: +SKIP
    """

    def __init__(self, llm: Any, *, lora_request: Any = None) -> None:
        config = llm.model_config
        if "logprobs" not in config.logprobs_mode:
            raise ArgumentError(
                f"the engine's logprobs_mode is {config.logprobs_mode!r}: make the LLM with 'raw_logprobs' or "
                "'processed_logprobs'"
            )
        self._llm, self._lora_request = llm, lora_request
        self.vocabulary_size, self.max_tokens = int(config.get_vocab_size()), int(config.max_model_len)
        self.returns_all = config.max_logprobs == -1 or config.max_logprobs >= self.vocabulary_size

    def __repr__(self) -> str:
        return f"VllmModel({counted(self.vocabulary_size, 'token')})"

    def logprobs(self, queries: Sequence[TokenQuery]) -> Answers:
        """Return the log-probabilities of each query (see `LogprobModel`).

        Raises:
            InferenceError: If vLLM refuses the batch.
        """
        refused = [self._refusal(query) for query in queries]
        accepted = [query for query, failure in zip(queries, refused, strict=True) if failure is None]
        whole = self._whole(accepted)
        # Apart: in one batch vLLM would give requests for all log-probabilities those of the other requests' tokens.
        sliced = [query for query, is_whole in zip(accepted, whole, strict=True) if not is_whole]
        parts = iter(in_slices(sliced, MAX_TOKENS, partial(self._ask, whole=False)))
        wide = iter(self._ask([query for query, is_whole in zip(accepted, whole, strict=True) if is_whole], whole=True))
        answers = (next(wide) if is_whole else next(parts) for is_whole in whole)
        return [failure or next(answers) for failure in refused]

    def _whole(self, queries: Sequence[TokenQuery]) -> list[bool]:
        """Return which queries to ask for all log-probabilities: none if a batch of their own would save too few requests."""
        more = [-(-len(query.tokens_C) // MAX_TOKENS) - 1 for query in queries]  # requests, in slices
        wide = [self.returns_all and self.vocabulary_size <= _TOKENS_A_REQUEST * number for number in more]
        saved = sum(number for number, is_wide in zip(more, wide, strict=True) if is_wide)
        return wide if all(wide) or saved > _REQUESTS_A_BATCH else [False] * len(wide)

    def _refusal(self, query: TokenQuery) -> InferenceError | None:
        """Return what vLLM would refuse, with the whole batch."""
        if len(query.prefix) >= self.max_tokens:
            length = counted(len(query.prefix) + 1, "token")
            message = f"a prompt and its item have {length}: the engine reads at most {self.max_tokens:,}"
            return InferenceError(message, reason="refused")
        largest = max(max(query.prefix), int(query.tokens_C.max(initial=0)))
        if largest >= self.vocabulary_size:
            return InferenceError(
                f"the model has {counted(self.vocabulary_size, 'token')}, and none {largest}", reason="refused"
            )
        return None

    def _ask(self, queries: Sequence[TokenQuery], whole: bool) -> list[Logprobs | InferenceError]:
        if not queries:
            return []
        vllm: Any = importlib.import_module("vllm")
        # skip_clone: no deep copy of each, because nobody else has them.
        plain = {"max_tokens": 1, "temperature": 0.0, "detokenize": False, "flat_logprobs": True, "skip_clone": True}
        params = partial(vllm.SamplingParams, **plain)
        # vllm.TokensPrompt is a TypedDict.
        prompts = [{"prompt_token_ids": list(query.prefix)} for query in queries]
        different = {} if whole else {query.tokens_C.tobytes(): query.tokens_C for query in queries}
        of_tokens = {key: params(logprob_token_ids=tokens_C.tolist()) for key, tokens_C in different.items()}
        params_of_prompts = params(logprobs=-1) if whole else [of_tokens[query.tokens_C.tobytes()] for query in queries]
        try:
            outputs = self._llm.generate(prompts, params_of_prompts, use_tqdm=False, lora_request=self._lora_request)
        except (ValueError, importlib.import_module("vllm.exceptions").VLLMClientError) as error:
            raise InferenceError(f"vLLM refused {counted(len(queries), 'prompt')}: {error}", reason="refused") from error
        if len(outputs) != len(queries):
            raise InferenceError(f"vLLM answered {len(outputs)} of {counted(len(queries), 'prompt')}", reason="missing_answer")
        return [_read(query, output) for query, output in zip(queries, outputs, strict=True)]


def _read(query: TokenQuery, output: Any) -> Logprobs | InferenceError:
    flat = output.outputs[0].logprobs if output.outputs else None
    if not flat:
        return InferenceError("vLLM returned no log-probabilities for a prompt", reason="no_logprobs")
    first = slice(flat.start_indices[0], flat.end_indices[0])
    try:
        return answer_to(query, flat.token_ids[first], flat.logprobs[first])
    except InferenceError as error:
        return error


class VllmServer(OpenAIServer):
    """vLLM's OpenAI-compatible server, through `POST /v1/completions` with `logprob_token_ids`.

    Args:
        url: The server's address.
        model: The name under which it serves the model.
        max_token_ids: The largest number of tokens of one request; a longer query is sent in slices, in several requests at
            once. If the server refuses so many, the query is sent again with as many as its refusal allows.
        options: How to talk to the server.

    Examples:
        >>> model = VllmServer("http://localhost:8000", model="Qwen3-sid")                           # doctest: +SKIP
        >>> LogprobBeamSearch(index, model, code_tokens=tokens, num_items=50).run(prompts)           # doctest: +SKIP
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        max_token_ids: int = MAX_TOKENS,
        options: HttpOptions | None = None,
    ) -> None:
        if max_token_ids < 1:
            raise ArgumentError(
                f"max_token_ids is {max_token_ids}: expected the largest number of tokens that a request may name, 1 or more"
            )
        super().__init__(url, model=model, num_logprobs=1, options=options)
        self.max_tokens = max_token_ids

    def _smaller_limit(self, error: InferenceError) -> int | None:
        said, size = str(error).partition(" answered 400: ")[2], self.max_tokens or 1
        if size == 1 or "logprob_token_ids" not in said or not _LIMIT.search(said):
            return None
        named = [int(number) for number in _LIMIT.findall(said) if number and 0 < int(number) < size]
        return min(named, default=size // 2)

    def _remedy(self, said: str) -> str:
        return ""

    def _advice(self) -> str:
        return "the server ignored logprob_token_ids: use a version of vLLM whose /v1/completions has this field"

    def _body(self, queries: Sequence[TokenQuery]) -> dict[str, object]:
        tokens = sorted({token for query in queries for token in query.tokens_C.tolist()})
        # Defaults of the model's generation_config.json would change `processed_logprobs`.
        plain = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        plain |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
        return super()._body(queries) | plain | {"logprob_token_ids": tokens}
