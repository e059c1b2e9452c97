"""`python -m tests.fuzz [TARGET...] [--cases N] [--seed S]`: fuzz targets, print figures, keep inputs that crash."""

import argparse
import sys

from tests.fuzz.driver import all_targets, fuzz


def main() -> int:
    """1 if anything crashed."""
    names = list(all_targets())
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the parsers and loaders.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--cases", type=int, default=1_000_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = options.targets or names
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"there is no target {unknown[0]}: choose from {', '.join(names)}")
    crashes = 0
    for name in chosen:
        found = fuzz(name, max(1, options.cases // len(chosen)), options.seed)
        print(f"{name:16} {found}", flush=True)
        for path, message in found.crashes.items():
            print(f"  {message}\n    {path}", flush=True)
        crashes += len(found.crashes)
    return bool(crashes)


if __name__ == "__main__":
    sys.exit(main())
