"""A small HTTP server that speaks the routes of vLLM, SGLang and OpenAI, and answers them with a real model of transformers.

`fault` may change an answer: it gets the parsed body and the answer, and returns what is sent instead.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from leafbeam.integrations.logprobs import TokenQuery

from .tiny import Model

MAX_TOKENS = 128  # of logprob_token_ids, as in vLLM


@dataclass(frozen=True, kw_only=True)
class Reply:
    """status, headers and body in the place of an answer; hang_up: close the connection without one."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    hang_up: bool = False
    chunks: Callable[[], Generator[bytes]] | None = None


@dataclass
class State:
    """What the server does and saw."""

    model: Model
    fault: Callable[[dict[str, Any], Any], Any] | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    url: str = ""


def log_probabilities(model: Model, prefixes: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
    """log p of every token of the model after each prefix."""
    found: list[Any] = [None] * len(prefixes)
    for length in {len(prefix) for prefix in prefixes}:
        rows = [row for row, prefix in enumerate(prefixes) if len(prefix) == length]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([list(prefixes[row]) for row in rows])).logits[:, -1].float()
        for row, values in zip(rows, logits.log_softmax(-1).numpy(), strict=True):
            found[row] = values
    return found


class LocalModel:
    """The same model as a `LogprobModel`, without a server. queries: all that it was asked."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.queries: list[TokenQuery] = []

    def logprobs(self, queries: Sequence[TokenQuery]) -> list[NDArray[np.float32]]:
        self.queries += queries
        values = log_probabilities(self.model, [query.prefix for query in queries])
        return [value[query.tokens_C] for value, query in zip(values, queries, strict=True)]


def completions(model: Model, body: dict[str, Any]) -> Any:
    """vLLM's and OpenAI's answer: the tokens asked for, or the most likely ones."""
    asked = body.get("logprob_token_ids")
    if asked is not None and len(asked) > MAX_TOKENS:
        said = f"Requested logprob_token_ids of length {len(asked)}, which is greater than max allowed: {MAX_TOKENS}"
        return Reply(status=400, body=json.dumps({"error": {"message": said, "code": 400}}).encode())
    choices: list[dict[str, Any]] = []
    for index, values in enumerate(log_probabilities(model, body["prompt"])):
        sampled = int(values.argmax())
        count = len(values) if body["logprobs"] == -1 else body["logprobs"]
        tokens = [sampled, *(asked if asked is not None else np.argsort(-values, kind="stable")[:count].tolist())]
        name = "token_id:{}" if body.get("return_tokens_as_token_ids") else "<{}>"
        top = {name.format(token): max(float(values[token]), -9999.0) for token in tokens}
        logprobs = {"tokens": [name.format(sampled)], "token_logprobs": [float(values[sampled])], "top_logprobs": [top]}
        choices.append({"index": index, "text": "x", "logprobs": logprobs, "finish_reason": "length"})
    return {"id": "1", "object": "text_completion", "model": body["model"], "choices": choices}


def generate(model: Model, body: dict[str, Any]) -> Any:
    """SGLang's answer."""
    answers: list[dict[str, Any]] = []
    for tokens, values in zip(body["token_ids_logprob"], log_probabilities(model, body["input_ids"]), strict=True):
        sampled, entries = int(values.argmax()), [[float(values[token]), token, None] for token in tokens]
        meta = {"output_token_logprobs": [[float(values[sampled]), sampled, None]], "output_token_ids_logprobs": [entries]}
        answers.append({"text": "x", "output_ids": [sampled], "meta_info": meta})
    return answers


@contextmanager
def inference_server(model: Model) -> Generator[State]:
    """The server on a free port of this machine, in threads."""
    state = State(model=model)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                state.bodies.append(body)
                route = {"/v1/completions": completions, "/generate": generate}[self.path]
                answer = route(state.model, body)
                fault = state.fault
            if fault is not None:
                answer = fault(body, answer)
            reply = answer if isinstance(answer, Reply) else Reply(body=json.dumps(answer).encode())
            if reply.hang_up:
                self.close_connection = True
                return
            try:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                if reply.chunks is None:
                    self.send_header("Content-Length", str(len(reply.body)))
                    self.end_headers()
                    self.wfile.write(reply.body)
                    return
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for chunk in reply.chunks():
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:  # the client went away
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
