"""A point of an experiment measured in a process of its own, which the system may end without ending the run.

a child measures the point, and notes the method that it is at
it ends without an answer (memory ran out, a crash): that method is left out by name, and another child measures the rest
methods that fit, but not beside the others: another child measures them beside leafbeam and the unconstrained ones
"""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.peers.failure import ended
from benchmarks.static.catalog import Shape
from benchmarks.static.setting import Setting
from leafbeam.errors import LeafbeamError

__all__ = ["measured_apart"]

Measured = dict[str, Any]
Measure = Callable[[Shape, Setting], Measured]

_BASE = ("leafbeam", "unconstrained", "unconstrained_jax")  # of every sitting
_BY_METHOD = ("step_us", "overhead_us", "by_level_us", "trials", "nbytes", "shares", "forms", "left_out")


class _Ended(Exception):
    """A child ended without an answer: the method it was at, "" for none, and why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name, self.reason = name, reason


def measured_apart(measure: Measure, shape: Shape, setting: Setting, names: Sequence[str]) -> Measured | str:
    """What `measure` gives of the methods in `names` in one or more children; a text says why there is nothing to show."""
    without = dict(setting.without)
    measured: Measured | None = None
    waiting: Sequence[str] = names
    while waiting:
        asked = tuple(name for name in names if name in waiting or name in _BASE)
        try:
            found = _in_child(measure, shape, replace(setting, only=asked, without=without))
        except _Ended as child:
            if child.name in without or child.name not in names or child.name == "leafbeam":
                return child.reason
            without[child.name] = child.reason
            waiting = [name for name in waiting if name != child.name]
            if measured is not None:
                measured["left_out"][child.name] = child.reason
            continue
        waiting = [name for name in found.pop("waiting", ()) if name not in _BASE]
        measured = found if measured is None else _joined(measured, found)
    return measured if measured is not None else "; ".join(sorted(set(without.values())))


def _joined(first: Measured, later: Measured) -> Measured:
    """The methods of both; those of the later sitting are marked, with the step of leafbeam that they took turns with."""
    known = first["step_us"].keys() | first["left_out"].keys()
    for part in _BY_METHOD:
        first[part] |= {name: value for name, value in later[part].items() if name not in known}
    beside = later["step_us"].get("leafbeam")
    for name in later["step_us"].keys() - known:
        first.setdefault("beside_leafbeam_us", {})[name] = beside
    return first


def _in_child(measure: Measure, shape: Shape, setting: Setting) -> Measured:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "at"
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(sender, measure, shape, replace(setting, apart=False, journal=journal)))
        child.start()
        sender.close()  # or the end of the child would not be the end of the pipe
        try:
            error, found = receiver.recv()
        except EOFError:
            child.join()
            failure = ended(child.exitcode, "the process ended without an answer")
            raise _Ended(journal.read_text(encoding="utf-8") if journal.exists() else "", str(failure)) from None
        finally:
            receiver.close()
        child.join()
    if error is not None:
        raise error
    return found


def _child(sender: Connection, measure: Measure, shape: Shape, setting: Setting) -> None:
    with suppress(OSError):  # where memory runs out, this process is what the system ends, and nobody else's
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    try:
        answer = (None, measure(shape, setting))
    except (LeafbeamError, AssertionError) as error:
        answer = (error, None)
    except Exception:
        answer = (RuntimeError(traceback.format_exc()), None)
    sender.send(answer)
    sender.close()
