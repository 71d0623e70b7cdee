# Every target works on a fresh machine with Python 3.11 or newer: what it needs is set up first.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-long lint pytest lock bench bench-quick docs clean

BIN   := .venv/bin
STAMP := .venv/.installed
PIP   := $(BIN)/python -m pip --disable-pip-version-check --quiet
# The first of these that is Python 3.11 or newer makes .venv. Choose another with: make setup PYTHON=...
PYTHON ?=
PYTHONS := $(or $(PYTHON),python3.11 python3.12 python3.13 python3.14 python3)
PYTEST = $(BIN)/pytest -n 2 -m "$(if $(PARLEY_LONG),,not long)"
# More arguments for the resolver, for example: make lock LOCK_ARGS=--upgrade
LOCK_ARGS ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## create .venv with everything in requirements.lock

$(STAMP): requirements.lock pyproject.toml
	@set -e; \
	if ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
	  found=; \
	  for python in $(PYTHONS); do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "Parley needs Python 3.11 or newer; tried: $(PYTHONS)." >&2; \
	    echo "Install one, or name one: make setup PYTHON=/path/to/python3.11" >&2; \
	    exit 2; \
	  fi; \
	  echo "creating .venv with $$("$$found" --version)"; \
	  "$$found" -m venv --clear .venv || { \
	    echo "This Python cannot create virtual environments (on Debian and Ubuntu: install python3-venv)." >&2; \
	    exit 2; \
	  }; \
	fi; \
	echo "installing requirements.lock"; \
	$(PIP) install --require-hashes -r requirements.lock; \
	$(PIP) install --no-deps --no-build-isolation --no-index -e .; \
	touch $@

demo: $(STAMP) ## watch a small network agree while one replica lies and one crashes
	@./parley demo

test: lint pytest ## ruff, mypy, the import contracts, then pytest

test-long: export PARLEY_LONG = 1
test-long: lint pytest ## the same with more seeds and larger counts

lint: $(STAMP)
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports

# The ordering core is held to full branch coverage by its own tests; the others run without the cost of measuring it.
pytest: $(STAMP) lint
	$(PYTEST) tests/consensus \
	  --cov=parley.consensus --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100
	$(PYTEST) --ignore=tests/consensus

# Without --upgrade the versions already in the file stay where they still fit.
lock: $(STAMP) ## resolve the dependencies anew into requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links --extra bench --group dev $(LOCK_ARGS) pyproject.toml -o requirements.lock
	@if grep -nE '://|file:' requirements.lock; then echo "requirements.lock must not hold addresses" >&2; exit 1; fi

bench: $(STAMP) ## measure the ordering core
	@./parley bench consensus

bench-quick: $(STAMP) ## the same, in seconds
	@./parley bench consensus --quick

docs: $(STAMP) ## check every link in the documents and print their index
	@$(BIN)/python tools/check_docs.py

clean: ## remove .venv, caches and results
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .coverage .coverage.* dist
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
