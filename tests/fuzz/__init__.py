"""Fuzzing of every parser and loader: `make fuzz [TARGET="body index"] [CASES=1000000]`.

A target is a function `fuzz_NAME(data: bytes)` in a module of `targets/`. It may return or raise a LeafbeamError; any other
exception, a signal, or a case that takes 30 s is a crash. corpus/NAME/ holds its first inputs, a few kB each. An input that
crashed is kept in `tests/fuzz/crashes/NAME/` (git ignores it); once fixed, move it to the corpus, where `make test` runs it.
"""
