"""vLLM on a CPU, on a checkpoint of ours: its offline engine and its HTTP server, as processes of .venv-peers (`make peers`).

Whatever stops it is a `PeerFailure` with a status for a row: missing, failed, crashed, out of memory, timed out.
"""

from __future__ import annotations

import itertools
import json
import operator
import os
import selectors
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil
from safetensors.numpy import load_file, save_file

from benchmarks.peers.failure import PeerFailure, ended, kind_of

__all__ = [
    "ENVIRONMENT",
    "PeerFailure",
    "VllmEngine",
    "VllmSettings",
    "grammar_of",
    "token_text",
    "vllm_engine",
    "vllm_server",
    "write_padded",
    "write_tokenizer",
]

ENVIRONMENT = Path(__file__).parents[2] / ".venv-peers"
_RUNNER = Path(__file__).with_name("vllm_runner.py")
_START_S = 600.0


@dataclass(frozen=True, kw_only=True)
class VllmSettings:
    """What may make vLLM faster or slower: a benchmark takes what answers fastest.

    threads: of its products. compiled: by torch.compile, as it does by default. passive: waiting threads spin for .1 ms, as
    those of `leafbeam serve`. sequences, batch_tokens: of one step of its engine at most; None: its own defaults.
    """

    threads: int
    compiled: bool = False
    passive: bool = False
    sequences: int | None = None
    batch_tokens: int | None = None

    def __str__(self) -> str:
        limits = [f"{self.sequences:,} sequences"] if self.sequences else []
        limits += [f"{self.batch_tokens:,} tokens"] if self.batch_tokens else []
        waits = ["passive"] if self.passive else []
        return ", ".join(["compiled" if self.compiled else "eager", f"threads {self.threads}", *waits, *limits])

    @property
    def environment(self) -> dict[str, str]:
        waits = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"} if self.passive else {}
        return {"OMP_NUM_THREADS": str(self.threads), "VLLM_CPU_OMP_THREADS_BIND": f"0-{self.threads - 1}"} | waits


class VllmEngine:
    """`vllm.LLM` in a child process, which starts at the first job and again after a failure (`vllm_engine`)."""

    def __init__(
        self, options: Mapping[str, Any], settings: VllmSettings, log: IO[str], limit_s: float, environment: Path
    ) -> None:
        self._options, self._settings = {**options, **asdict(settings)}, settings
        self._log, self._limit_s, self._environment = log, limit_s, environment
        self._child: subprocess.Popen[str] | None = None
        self.version = ""

    def run(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The runner's answer: seconds and sequences. Raises PeerFailure."""
        if self._child is None:
            self._start()
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            print(json.dumps(job), file=self._child.stdin, flush=True)
        except BrokenPipeError:
            raise self._failure() from None
        answer = self._answer(self._limit_s)
        if "error" in answer:
            self.close()  # its requests would stay in the engine
            raise PeerFailure(kind_of(answer["error"], "failed"), answer["error"])
        return answer

    def close(self) -> None:
        """End the child; a later job starts another."""
        if self._child is not None:
            _end(self._child, 0)
            self._child.communicate()
        self._child = None

    def _start(self) -> None:
        words = [str(_python(self._environment)), str(_RUNNER), json.dumps(self._options)]
        self._log.truncate(0)
        pipe = subprocess.PIPE
        variables = _plain_environment() | self._settings.environment
        self._child = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=self._log, text=True, env=variables)
        self.version = self._answer(_START_S)["version"]

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self._child is not None
        assert self._child.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            if not selector.select(limit_s):
                self.close()
                raise PeerFailure("timed out", f"no answer within {limit_s:g} s")
        line = self._child.stdout.readline()
        if not line:
            raise self._failure()
        return json.loads(line)

    def _failure(self) -> PeerFailure:
        """Why the child ended: its exit status and the last line that it printed."""
        assert self._child is not None
        code = self._child.wait()
        self.close()
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        return ended(code, lines[-1] if lines else "it printed nothing")


@contextmanager
def vllm_engine(
    directory: Path,
    *,
    settings: VllmSettings,
    max_tokens: int,
    limit_s: float,
    environment: Path = ENVIRONMENT,
    cache_gib: int = 6,
    dtype: str = "float32",
) -> Generator[VllmEngine]:
    """The offline engine on a checkpoint that has a tokenizer (`write_tokenizer`).

    max_tokens: the longest prompt and answer. limit_s: seconds for a job, then the child is ended.
    cache_gib: of keys and values, which vLLM allocates and writes when it starts. dtype: of weights and computation.
    """
    options = {
        "directory": str(directory),
        "dtype": dtype,
        "max_tokens": max_tokens,
        "cache_gib": cache_gib,
    }
    with tempfile.TemporaryFile("w+") as log:
        engine = VllmEngine(options, settings, log, limit_s, environment)
        try:
            yield engine
        finally:
            engine.close()


@contextmanager
def vllm_server(directory: Path, *, settings: VllmSettings, max_tokens: int, environment: Path = ENVIRONMENT) -> Generator[str]:
    """vLLM's HTTP server on a free port; the address of its completions. Raises PeerFailure where it does not come up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The command `vllm` looks for a distribution of that name, which vllm-cpu is not.
    words = [str(_python(environment)), "-m", "vllm.entrypoints.openai.api_server", "--model", str(directory)]
    words += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model", "--dtype", "float32"]
    words += ["--block-size", "32", "--max-logprobs", "-1", "--max-model-len", str(max_tokens), "--disable-log-stats"]
    words += [] if settings.compiled else ["--enforce-eager"]
    words += ["--max-num-seqs", str(settings.sequences)] if settings.sequences else []
    words += ["--max-num-batched-tokens", str(settings.batch_tokens)] if settings.batch_tokens else []
    bind = settings.environment | {"VLLM_CPU_KVCACHE_SPACE": "6"}
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(words, stdout=log, stderr=log, env=_plain_environment() | bind)
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", child, log)
            yield f"http://127.0.0.1:{port}/v1/completions"
        finally:
            _end(child, 30)


def write_tokenizer(directory: Path) -> None:
    """A word for each token of a checkpoint, `token_text`: vLLM's beam search and grammars need a tokenizer."""
    size = json.loads((directory / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    split = {"type": "Split", "pattern": {"String": "<"}, "behavior": "MergedWithNext", "invert": False}
    words = {token_text(token): token for token in range(size)}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
    tokenizer = {"version": "1.0", "added_tokens": [], **empty, "pre_tokenizer": split, "decoder": {"type": "Fuse"}}
    tokenizer |= {"model": {"type": "WordLevel", "vocab": words, "unk_token": token_text(0)}}
    special = {f"{name}_token": token_text(token) for name, token in (("pad", 0), ("unk", 0), ("bos", 1), ("eos", 2))}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | special), encoding="utf-8"
    )


def write_padded(directory: Path, target: Path, size: int) -> None:
    """The checkpoint with rows of zeros for tokens up to `size`: vLLM's beams need two log probabilities each of one step."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(config | {"vocab_size": size}), encoding="utf-8")
    tensors = load_file(directory / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = np.pad(tensors[name], ((0, size - config["vocab_size"]), (0, 0)))
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    write_tokenizer(target)


def grammar_of(items_NL: Sequence[Sequence[int]]) -> str:
    """A grammar of these items' tokens, one rule for each first token: xgrammar takes 12 times as long for one list of all."""
    tails = {
        first: " | ".join(f'"{token_text(*item[1:])}"' for item in items)
        for first, items in itertools.groupby(sorted(map(tuple, items_NL)), key=operator.itemgetter(0))
    }
    root = " | ".join(f'"{token_text(first)}" after_{first}' for first in tails)
    return "\n".join([f"root ::= {root}", *(f"after_{first} ::= {tail}" for first, tail in tails.items())])


def token_text(*tokens: int) -> str:
    """The text of these tokens."""
    return "".join(f"<{token}>" for token in tokens)


def _python(environment: Path) -> Path:
    path = environment / "bin" / "python"
    if not path.exists():
        raise PeerFailure("missing", f"{environment.name} is not there: `make peers` creates it")
    return path


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def _end(child: subprocess.Popen[Any], wait_s: float) -> None:
    """End a child that may end itself within so many seconds, and its own, for which vLLM does not wait."""
    if child.poll() is not None:  # its number may be another process's by now
        return
    family = psutil.Process(child.pid).children(recursive=True)
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(wait_s)
    child.kill()
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.kill()


def _wait_for(url: str, child: subprocess.Popen[Any], log: IO[str]) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and child.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    log.seek(0)
    lines: Sequence[str] = log.read().splitlines() or ["it printed nothing"]
    if child.poll() is None:
        raise PeerFailure("timed out", f"the server was not ready within {_START_S:g} s")
    raise ended(child.returncode, lines[-1])
