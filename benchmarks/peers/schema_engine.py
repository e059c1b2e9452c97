"""One engine of JSON Schemas in a process of its own: a case a line in, an answer a line out. Started by `micro.schemas`.

    python schema_engine.py ENGINE VOCABULARY

ENGINE is leafbeam, llguidance or xgrammar; the last two run in .venv-peers, where this project is not installed. VOCABULARY is
a JSON file: {"tokens": the bytes of each in base 64, or null for special ones, "end": the token that ends a text}. A case is
{"schema", "texts"}; its answer is {"build_ms", "mask_us", "accepted"} or {"refused": reason}. `build_ms` ends with the first
mask, since llguidance does its work when masks are computed; `mask_us` are those of the positions of the first accepted text,
at most 256 of them.
"""

# pyright: basic, reportMissingImports=false, reportPossiblyUnboundVariable=false
import base64
import json
import os
import resource
import sys
import time

MAX_POSITIONS, MAX_MEMORY = 256, 8 << 30
WARM = {  # what is compiled or loaded at the first use of common keywords
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "word": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
        "number": {"type": "integer", "minimum": 0, "maximum": 99},
        "list": {"type": "array", "items": {"anyOf": [{"enum": [1, "x"]}, {"type": "null"}]}, "maxItems": 3},
        "any": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["text"],
}


class Greedy:
    """The longest token at each position."""

    def __init__(self, tokens):
        self._ids = {text: token for token, text in reversed(list(enumerate(tokens))) if text}
        self._longest = max(map(len, self._ids))

    def greedy(self, text):
        found, at = [], 0
        while at < len(text):
            length = next(n for n in range(min(self._longest, len(text) - at), 0, -1) if text[at : at + n] in self._ids)
            found.append(self._ids[text[at : at + length]])
            at += length
        return found


class Leafbeam:
    def __init__(self, tokens, end):
        import numpy as np

        from leafbeam.automata import TokenTrie

        self._np, self._tokens = np, TokenTrie.of(tokens)

    def compile(self, schema):
        from leafbeam.automata import Automaton
        from leafbeam.errors import LeafbeamError

        try:
            self._automaton = Automaton.from_json_schema(schema, self._tokens)
        except LeafbeamError as error:
            raise ValueError(str(error)) from error
        self.begin()
        self.mask()

    def begin(self):
        self._state = 0

    def mask(self):
        return self._automaton.masks(self._np.array([self._state]))

    def take(self, token):
        self._state = int(self._automaton.step(self._np.array([self._state]), self._np.array([token]))[0])
        return self._state >= 0

    def may_end(self):
        return self._automaton.accepts(self._state)


class Llguidance:
    def __init__(self, tokens, end):
        import llguidance
        import llguidance.numpy

        class Tokenizer(Greedy):
            eos_token_id, bos_token_id = end, None

            def __init__(self):
                super().__init__(tokens)
                self.tokens = [b"<%d>" % token if text is None else text for token, text in enumerate(tokens)]
                self.special_token_ids = [token for token, text in enumerate(tokens) if text is None]

            def __call__(self, text):
                return self.greedy(text if isinstance(text, bytes) else text.encode())

        wrapper = llguidance.TokenizerWrapper(Tokenizer())
        self._module = llguidance
        self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=len(tokens), slices=llguidance.LLTokenizer.json_slices())
        self._bits = llguidance.numpy.allocate_token_bitmask(1, len(tokens))

    def compile(self, schema):
        grammar = self._module.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        self._matcher = self._module.LLMatcher(self._tokenizer, grammar, log_level=0)
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())
        self.mask()
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())

    def begin(self):
        self._matcher.reset()

    def mask(self):
        self._module.numpy.fill_next_token_bitmask(self._matcher, self._bits)

    def take(self, token):
        return self._matcher.try_consume_tokens([token]) == 1

    def may_end(self):
        return self._matcher.is_accepting()


class Xgrammar:
    def __init__(self, tokens, end):
        import xgrammar

        texts = [text or b"" for text in tokens]
        info = xgrammar.TokenizerInfo(texts, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[end])
        self._module, self._end = xgrammar, end
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._bits = xgrammar.allocate_token_bitmask(1, len(tokens))

    def compile(self, schema):
        try:
            self._grammar = self._compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        self.begin()
        self.mask()

    def begin(self):
        self._matcher = self._module.GrammarMatcher(self._grammar)

    def mask(self):
        self._matcher.fill_next_token_bitmask(self._bits)

    def take(self, token):
        return self._matcher.accept_token(token)

    def may_end(self):
        return self._matcher.accept_token(self._end)


def answer(engine, greedy, case):
    began = time.perf_counter()
    try:
        engine.compile(case["schema"])
    except ValueError as error:
        return {"refused": str(error)[:300]}
    build_ms = 1e3 * (time.perf_counter() - began)
    texts = [greedy.greedy(text.encode()) for text in case["texts"]]
    accepted = [accepts(engine, tokens) for tokens in texts]
    mask_us = times(engine, texts[accepted.index(True)]) if any(accepted) else []
    return {"build_ms": build_ms, "mask_us": mask_us, "accepted": accepted}


def accepts(engine, tokens):
    engine.begin()
    return all(engine.take(token) for token in tokens) and bool(engine.may_end())


def times(engine, tokens):
    """Microseconds of the mask at each position."""
    engine.begin()
    taken = []
    for token in tokens[:MAX_POSITIONS]:
        began = time.perf_counter()
        engine.mask()
        taken.append(round(1e6 * (time.perf_counter() - began), 1))
        engine.take(token)
    return taken


def main(name, vocabulary):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engines print to stdout too
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    with open(vocabulary) as file:
        content = json.load(file)
    tokens = [None if text is None else base64.b64decode(text) for text in content["tokens"]]
    engine = {"leafbeam": Leafbeam, "llguidance": Llguidance, "xgrammar": Xgrammar}[name](tokens, content["end"])
    greedy = Greedy(tokens)
    answer(engine, greedy, {"schema": WARM, "texts": ['{"text": "x", "word": "ab", "number": 7, "list": [1]}']})
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(engine, greedy, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
