# `make demo` and `make test` create .venv and install what they need, once.
PYTHON ?= python3
BIN := .venv/bin
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
DATA ?=
# Of pytest: tests wait for a quarter of their time, so that three of them fill two cores. Each takes neighbouring tests, which
# share what they set up and what they compile (worksteal).
PROCESSES ?= 3
# Bytecode is kept, whatever the environment says: each worker, and each server that a test starts, would compile all modules again.
export PYTHONDONTWRITEBYTECODE =
PYTEST = $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal
# pip would compile each of ten thousand modules, which takes longer than the rest of the installation; Python compiles those that
# are imported.
PIP_FLAGS = --quiet --disable-pip-version-check --no-compile
DEMO_ARGS := $(if $(DATA),--data $(DATA))

.PHONY: demo test test-all check check-full check-prose fuzz simulate generated docs bench profile soak reproduce peers figures gpu package sbom audit clean

demo: .venv/.demo
	$(BIN)/leafbeam demo $(DEMO_ARGS)

# Every test but the slow ones; `test-all` runs those too.
test: .venv/.dev
	$(PYTEST) -m "not slow and not full"

test-all: .venv/.dev
	$(PYTEST)

# The whole parity grid on the backends of which `test` runs a sample (JAX, Triton's interpreter), the longest rows of kills, and
# the longest tables and figures: about half an hour.
check-full: .venv/.dev
	$(PYTEST) -m full

# Mutated inputs for every parser and loader, or those of TARGET="body http"; inputs that crash stay in tests/fuzz/crashes.
fuzz: .venv/.dev
	$(BIN)/python -m tests.fuzz $(TARGET) --cases $(or $(CASES),1000000)

# Seeded schedules of simulated disks (crashes, faults) and clocks (clients, hangs); a failing seed is printed with its command.
simulate: .venv/.dev
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0) $(if $(OF),--of $(OF))

check: .venv/.dev check-prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

check-prose: .venv/.dev
	$(BIN)/python tests/prose.py

# What code writes of the references, the drawings and the client for TypeScript; run it after a change of an option or of the HTTP
# interface.
generated: .venv/.dev
	$(BIN)/python docs/cli_reference.py
	$(BIN)/python docs/http_reference.py
	$(BIN)/python docs/settings_reference.py
	$(BIN)/python docs/drawings.py
	$(BIN)/python examples/typescript/generate.py

# The site, in site/; a warning is an error, and nothing is fetched.
docs: .venv/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Benchmarks beside their peers, all of the short ones or those of NAME="step index"; rows go to benchmarks/results.
bench: .venv/.dev
	for name in $(or $(NAME),step index filters post-filter forced head attention automaton language hf updates retrieve); do \
	  $(BIN)/python -m benchmarks $$name --json || exit 1; done

# Where the time of one request goes: each way from the model's calls to HTTP, and the functions under the profiler.
profile: .venv/.dev
	$(BIN)/python -m benchmarks latency
	$(BIN)/python -m benchmarks profile

# An hour of mixed load: half of it an engine with changes, cancels and faults, then a server with changes over HTTP and killed
# HTTP processes; MINUTES=5 for less.
soak: .venv/.dev
	$(BIN)/python -m benchmarks soak --seconds $$(($(or $(MINUTES),60) * 30))

# Tables and figures of papers in full, with rows: all, or those of NAME="static-table-1 serve"; DATA=DIR for those that learn,
# MINUTES=100 for as much as fits, SINCE=2026-01-31 to leave out what was measured from that day on. `make figures` draws the plots.
reproduce: .venv/.dev
	$(BIN)/python -m benchmarks reproduce $(NAME) $(if $(DATA),--data $(DATA)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SINCE),--since $(SINCE))

# vLLM for CPUs in an environment of its own, for `python -m benchmarks production`; without it, its rows say that it is missing.
peers: .venv-peers/.installed
	@du -sh .venv-peers

# The numbers and plots of the README and docs/results, from the newest rows that are not refused.
figures: .venv/.dev
	$(BIN)/python -m benchmarks figures

# The product on a GPU, in parts of at most 8 minutes; PARTS=list names them, PARTS="step shapes" runs some. Rows are written as
# they are measured. Needs a Python with torch (CUDA), triton, numpy, numba and safetensors; installs nothing.
gpu:
	@$(GPU_PYTHON) -c 'import importlib.util as u, sys; \
	  no = [n for n in "torch triton numpy numba safetensors".split() if u.find_spec(n) is None]; \
	  no and sys.exit(f"make gpu needs {no}, which {sys.executable} lacks: install them, or name a Python with GPU_PYTHON=")'
	PYTHONPATH=. $(GPU_PYTHON) -m benchmarks.gpu.parts $(PARTS)

# Wheel and sdist in dist/, checked, and the wheel tried in an empty environment.
package: .venv/.dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	LEAFBEAM_DIST=dist $(BIN)/python -m pytest -m slow tests/test_package.py

# What `pip install leafbeam[EXTRAS]` brings with the tested versions, as CycloneDX, in dist/.
sbom: .venv/.dev
	$(BIN)/python deploy/sbom.py --extras $(or $(EXTRAS),serve,otel) --out dist/leafbeam.cdx.json

# Known vulnerabilities of the tested versions; asks the network.
audit: .venv/.dev
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/.demo: .venv/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install $(PIP_FLAGS) --constraint constraints.txt --editable '.[all]'
	touch $@

.venv/.dev: .venv/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install $(PIP_FLAGS) --constraint constraints.txt --editable '.[dev]'
	touch $@ .venv/.demo

# vLLM needs none of the three, and those it would bring were built for another torch.
.venv-peers/.installed: benchmarks/peers/vllm-requirements.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install $(PIP_FLAGS) --requirement $<
	.venv-peers/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

clean:
	rm -rf .venv .venv-peers runs site
