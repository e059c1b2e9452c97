"""SGLang's own route `POST /generate` as the language model of a search, with `token_ids_logprob`.

Tested against SGLang 0.5.23; the tests that always run use a server of ours that speaks its requests and answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from leafbeam.errors import InferenceError, counted
from leafbeam.integrations.http_logprobs import HttpLogprobs
from leafbeam.integrations.logprobs import Logprobs, TokenQuery, answer_to


class SglangServer(HttpLogprobs):
    """SGLang's HTTP server. Each prompt is sent with its own tokens, any number of them; the radix cache reads prompts once.

    Args:
        url: The server's address.
        options: How to talk to the server.

    Examples:
        >>> model = SglangServer("http://localhost:30000")                                           # doctest: +SKIP
        >>> LogprobBeamSearch(index, model, code_tokens=tokens, num_items=50).run(prompts)           # doctest: +SKIP
    """

    path = "/generate"
    same_tokens = False

    def _body(self, queries: Sequence[TokenQuery]) -> dict[str, object]:
        return {
            "input_ids": [list(query.prefix) for query in queries],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": -1,
            "token_ids_logprob": [query.tokens_C.tolist() for query in queries],
        }

    def read(self, answer: object, queries: Sequence[TokenQuery]) -> list[Logprobs | InferenceError]:
        """Return the log-probabilities of each query in an answer."""
        answers: list[object] = answer if isinstance(answer, list) else [answer]
        if len(answers) != len(queries):
            reason = "duplicate" if len(answers) > len(queries) else "missing_answer"
            raise InferenceError(
                f"the server sent {counted(len(answers), 'answer')} to {counted(len(queries), 'prompt')}", reason=reason
            )
        return [_answer(one, query) for one, query in zip(answers, queries, strict=True)]


def _answer(answer: object, query: TokenQuery) -> Logprobs | InferenceError:
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    positions = meta.get("output_token_ids_logprobs") if isinstance(meta, dict) else None
    if not isinstance(positions, list) or not positions or not isinstance(positions[0], list):
        return InferenceError("the server returned no `output_token_ids_logprobs` for a prompt", reason="no_logprobs")
    entries = positions[0]
    if not all(isinstance(entry, list) and len(entry) >= 2 for entry in entries):
        return InferenceError(f"the server returned {str(entries)[:80]}: expected lists of log-probability, token, text")
    try:
        return answer_to(query, [entry[1] for entry in entries], [entry[0] for entry in entries])
    except InferenceError as error:
        return error
