"""A rehearsal of the demo on a small shop: it compiles, on another core, the kernels that the demo's own steps then load.

On the first run of a machine, kernels take about 40 s to compile, for which the steps would wait one after the other.
"""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from leafbeam.demo.processes import run_command, running_server
from leafbeam.jit import kernel_directory
from leafbeam.machine import Machine


def is_worthwhile() -> bool:
    """Return whether no kernels are compiled yet and another core is there to do it."""
    is_compiled = any(Path(kernel_directory()).rglob("*.nbi"))
    return Machine.this().usable_cores > 1 and not is_compiled


@contextmanager
def rehearsal(log: Path) -> Generator["subprocess.Popen[bytes]"]:
    """Rehearse in a child process, which writes `log`; at the end, stop it if it still runs, and the step that it is at.

    Where it fails, the demo's own steps compile what is missing.
    """
    with TemporaryDirectory() as directory, log.open("wb") as out:
        command = [sys.executable, "-m", "leafbeam.demo.rehearsal", directory]
        one_core = {**os.environ, "OMP_NUM_THREADS": "1"}
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=one_core, process_group=0)
        try:
            yield child
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
            child.wait()


def rehearse(directory: Path) -> None:
    """Run each step, up to a server that is ready, on cores that nothing else wants.

    The small shop has the same columns, rules and kinds of codes.
    """
    os.nice(19)
    run = str(directory)
    for arguments in (
        ("make-shop", "--out", run, "--items", "600", "--users", "400"),
        ("fit-sids", "--data", run, "--run", run),
        ("train", "--run", run, "--minutes", "0.01"),
        ("build", "--run", run),
    ):
        deque(run_command(arguments), maxlen=0)
    with running_server(directory):
        pass


if __name__ == "__main__":
    rehearse(Path(sys.argv[1]))
