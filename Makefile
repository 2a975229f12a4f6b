# Everything a developer or a first-time user does. `make demo` and `make test` work on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.letterwise

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test check audit bench proto clean

help:  ## list the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(STAMP)  ## make the environment in .venv, once

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "Letterwise needs Python 3.11 to 3.13; set PYTHON=… to one"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(STAMP)

demo: setup  ## serve the embedded model, ask it about a support ticket, show the answers
	$(BIN)/python examples/demo.py

serve: setup  ## serve the embedded model on 127.0.0.1:50051, HTTP on 8080, until Ctrl-C
	$(BIN)/letterwise-service serve --model demo

test: setup  ## every test, the live ones with the real model included
	$(BIN)/letterwise-service fetch
	$(BIN)/python -m pytest

check: setup  ## lint, types, arrows of the house, the contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/python .ci/audit.py 20

audit: setup  ## known weaknesses of what is installed; passes with a note without a network
	$(BIN)/python .ci/audit.py 600

bench: setup  ## run every speed claim; writes bench/results.json
	$(BIN)/python -m bench

proto: setup  ## generate the stubs again from proto/
	$(BIN)/buf format --write
	$(BIN)/python proto/generate.py

clean:  ## remove the environment and every cache in the tree
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
