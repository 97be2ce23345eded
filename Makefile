# `make demo` and `make test` need Python 3.11 or newer, and make. Everything else goes into .venv, here.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
HEAD := assets/smollm2-135m-eagle3
# The part of the interpreter's tests that `make test` runs; `make gates` runs all of them.
INTERPRETED := interpreter_traps whole_model accept kv_commit \
	chunks features large_offsets noise norm rows sampling_edits sampling_logprobs top_tokens

.PHONY: help demo test gates compiled-sm_90 compiled-others interpreted gpu-check clean venv
.DELETE_ON_ERROR:

help:
	@echo "make demo    a real model, plain and with speculation: same text, which was faster"
	@echo "make test    lint, types and the fast tests (under 10 minutes on 2 cores)"
	@echo "make gates   the slow tests: the real model, every cuda kernel compiled and interpreted"
	@echo "make gpu-check  kernels, captures and their speed on a CUDA machine: no install, no network, 8 minutes"
	@echo "make clean   remove .venv and what tools left behind"
	@echo "PYTHON=python3.12 picks the interpreter of .venv"

demo: $(INSTALLED)
	@echo "== Demo model: found or prepared in your cache folder (a minute, 270 MB)"
	@folder=$$($(BIN)/tspec demo-model) && \
	echo "== Decoding, each prompt plain and in three other ways; first the kernels are compiled, once" && \
	$(BIN)/tspec bench "$$folder" --prompts examples/demo_prompts.jsonl --max-tokens 128 \
		--speculative ngram eagle3 auto --speculative-model $(HEAD)

test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest
	TRITON_INTERPRET=1 $(BIN)/pytest $(INTERPRETED:%=tests/interpret/test_%.py)

gates: $(INSTALLED)
	$(MAKE) -j 2 compiled-sm_90 compiled-others interpreted
	$(BIN)/pytest -m "slow and not gpu" --ignore=tests/aot

# Compiling every kernel takes longest: two processes at a time, which share the compiler's cache.
compiled-sm_90: $(INSTALLED)
	$(BIN)/pytest tests/aot -m slow -k "sm_90 or gfx942"

compiled-others: $(INSTALLED)
	$(BIN)/pytest tests/aot -m slow -k "not (sm_90 or gfx942)"

interpreted: $(INSTALLED)
	TRITON_INTERPRET=1 $(BIN)/pytest tests/interpret

gpu-check:
	PYTHONPATH=. $(PYTHON) -m benchmarks.gpu_check --json gpu-check.json

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python: got {sys.version.split()[0]}, need 3.11 or newer. Run make PYTHON=/path/to/python3.")'
	@echo "== Installing tspec and what it needs into .venv (some minutes)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	@touch $@
