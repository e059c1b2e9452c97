"""Shared by all tests: no deadlines (the machines are shared and noisy), the same examples every time, kernels never stale."""

import hashlib
import os
from pathlib import Path

from hypothesis import settings

settings.register_profile("shared-machine", deadline=None, derandomize=True)
settings.load_profile("shared-machine")

# numba's cache looks at the file of a compiled function and not at the files of the functions that it calls: after an edit of
# one of those it would go on with the old code. One cache for each state of the sources (read when numba is first imported).
_ROOT = Path(__file__).parent.parent
_COMPILED = ("index", "automata", "ops", "model", "integrations")
_SOURCES = sorted(path for room in _COMPILED for path in (_ROOT / "leafbeam" / room).rglob("*.py"))
_STATE = hashlib.blake2b(b"".join(path.read_bytes() for path in _SOURCES), digest_size=8).hexdigest()
os.environ["NUMBA_CACHE_DIR"] = str(_ROOT / ".pytest_cache" / f"numba-{_STATE}")

# Triton's kernels run under its interpreter here, GPU or not (read when a kernel's file is first imported).
os.environ["TRITON_INTERPRET"] = "1"
