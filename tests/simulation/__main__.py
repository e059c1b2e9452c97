"""Run many schedules: python -m tests.simulation [--of storage|requests] [--seeds 1000] [--first 0]

Prints what happened in them, and of each that fails its error and how to run it again; then the exit status is 1.
"""

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.simulation import requests, storage

KINDS = {"requests": requests.run, "storage": storage.run}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--of", choices=sorted(KINDS), action="append", help="all kinds by default")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args(arguments)
    failed = 0
    for kind in options.of or sorted(KINDS):
        counts, began = Counter[str](), time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(options.first, options.first + options.seeds):
                try:
                    counts += KINDS[kind](seed, Path(folder))
                except Exception:
                    failed += 1
                    traceback.print_exc()
                    print(f"seed {seed} failed, again: make simulate OF={kind} FIRST={seed} SEEDS=1", flush=True)
        minutes = (time.perf_counter() - began) / 60
        print(f"{kind}: {options.seeds:,} schedules, {options.seeds / minutes:,.0f} a minute; {dict(counts.most_common())}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
