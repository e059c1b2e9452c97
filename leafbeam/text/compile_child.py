"""The child process of `ConstraintCompiler`: `python -m leafbeam.text.compile_child`.

It reads lines of JSON: first the vocabulary and the limits, then constraints, each with the path of the file to write its
automaton to. It answers each line with a line. If a constraint takes too much processor time, SIGPROF ends the process,
even inside compiled code. The time of other programs does not count.
"""

import base64
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress

from leafbeam.automata import TokenTrie
from leafbeam.errors import AutomatonError, LeafbeamError
from leafbeam.text.constraints import Choices, FreeText, JsonSchema, Regex, Template, compiled, constraint_from_json


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    options = json.loads(sys.stdin.readline())
    tokens = TokenTrie.of([None if text is None else base64.b64decode(text) for text in options["vocabulary"]])
    _warm_up(tokens)
    os.nice(5)  # those who wait for a text go first
    _bound_memory(options["max_bytes"])

    def answer(line: Mapping[str, object]) -> None:
        print(json.dumps(line), file=answers, flush=True)

    answer({})
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, options["max_seconds"])
        try:
            constraint = constraint_from_json(json.loads(request["constraint"]))
            limits = {"max_states": options["max_states"], "max_bytes": options["max_automaton_bytes"]}
            automaton = compiled(constraint, tokens, **limits)
            if options["filled"]:
                automaton = automaton.filled()
            automaton.save(request["path"])
            found: dict[str, object] = {}
        except AutomatonError as error:
            found = {"error": str(error), "pointer": error.pointer}
        except LeafbeamError as error:
            found = {"error": str(error)}
        except (MemoryError, RecursionError) as error:
            found = {"error": f"the constraint is too large ({type(error).__name__}): make it smaller"}
        except OSError as error:  # of the file, as on a full disk: not the constraint's fault
            found = {"failure": str(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        answer(found)


def _warm_up(tokens: TokenTrie) -> None:
    """Load or compile every kernel now, because it would otherwise count as the time of the first constraint."""
    strings = {"type": "string", "pattern": "a", "maxLength": 3, "not": {"const": "b"}}
    schema = JsonSchema(schema={"type": "object", "properties": {"a": strings}})
    parts = [FreeText(stop="\n"), schema, Choices(texts=["a", "b"]), Regex(pattern="[ab]*"), Regex(pattern="b")]
    for constraint in (*parts, Template(parts=parts)):
        with suppress(AutomatonError):  # a vocabulary need not be able to write it
            compiled(constraint, tokens)


def _bound_memory(max_bytes: int) -> None:
    """Limit the memory that the process may allocate from now on, if the system reports how much it has allocated."""
    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (used + max_bytes, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
