# Every target works on a fresh machine with Python 3.11 or newer: what it needs is set up first.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup java demo test test-long check lint style types pytest pytest-consensus pytest-spark formal formal-quick lock bench bench-quick docs clean

BIN   := .venv/bin
STAMP := .venv/.installed
PIP   := $(BIN)/python -m pip --disable-pip-version-check --quiet
# The first of these that is Python 3.11 or newer makes .venv. Choose another with: make setup PYTHON=...
PYTHON ?=
PYTHONS := $(or $(PYTHON),python3.11 python3.12 python3.13 python3.14 python3)
PYTEST = $(BIN)/pytest --dist worksteal -m "$(if $(PARLEY_LONG),,not long)"
# Hundreds of processes are started below: without caches each would compile the whole package anew.
unexport PYTHONDONTWRITEBYTECODE
# More arguments for the resolver, for example: make lock LOCK_ARGS=--upgrade
LOCK_ARGS ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) java ## create .venv with everything in requirements.lock, and find or install Java for Spark

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
	$(BIN)/python -m compileall -q src; \
	touch $@

# Everything but Spark works without Java, so nothing fails here.
java: $(STAMP)
	@set -e; \
	if ! line=$$($(BIN)/python -m parley.spark.java); then \
	  if ! command -v apt-get >/dev/null; then sudo=none; \
	  elif [ "$$(id -u)" = 0 ]; then sudo=; \
	  elif sudo -n true 2>/dev/null; then sudo="sudo -n"; else sudo=none; fi; \
	  if [ "$$sudo" != none ]; then \
	    echo "installing openjdk-17-jre-headless for Spark"; \
	    { $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless; } >&2 || true; \
	  fi; \
	  $(BIN)/python -m parley.spark.java >/dev/null || \
	    echo "Spark needs Java 17 or newer, everything else works without it: $$line"; \
	fi

demo: $(STAMP) java ## watch replicas agree while one lies, hospitals share records, a reader catch its own broker, and Spark make tables
	@./parley demo

test: check ## ruff, mypy, the import contracts, then pytest

test-long: export PARLEY_LONG = 1
test-long: check ## the same with more seeds and larger counts, and the whole model

# Tests of Spark leave a core half idle: types and the ordering core are checked beside them. Then the rest.
check: style java
	@$(MAKE) --no-print-directory -j2 pytest-spark pytest-consensus
	@$(MAKE) --no-print-directory pytest

lint: style types

style: $(STAMP)
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

# Tests of Spark share one session, so they are a run of their own in one process.
pytest-spark: $(STAMP) java
	$(PYTEST) -n 0 tests/spark

# The ordering core is held to full branch coverage by its own tests. What they say is shown when they are done, because
# those of Spark write meanwhile.
pytest-consensus: types $(if $(PARLEY_LONG),formal,formal-quick)
	@said=$$($(PYTEST) -n 0 tests/consensus --cov=parley.consensus --cov-branch \
	  --cov-report=term-missing:skip-covered --cov-fail-under=100 2>&1) && result=0 || result=$$?; \
	echo; echo "$$said"; exit $$result

# The others run without the cost of measuring it. Four at a time keep two cores busy while some wait for processes.
pytest: $(STAMP)
	$(PYTEST) -n 4 --ignore=tests/consensus --ignore=tests/spark

formal: $(STAMP) ## check the model of the voting rules with Spin
	@set -e; \
	if ! command -v spin >/dev/null || ! command -v cc >/dev/null; then \
	  if ! command -v apt-get >/dev/null; then sudo=none; \
	  elif [ "$$(id -u)" = 0 ]; then sudo=; \
	  elif sudo -n true 2>/dev/null; then sudo="sudo -n"; else sudo=none; fi; \
	  if [ "$$sudo" = none ]; then \
	    echo "The model needs Spin and a C compiler: sudo apt-get install -y spin gcc libc6-dev" >&2; exit 2; \
	  fi; \
	  $$sudo apt-get update -qq; $$sudo apt-get install -y -qq spin gcc libc6-dev; \
	fi; \
	$(BIN)/python formal/check.py

formal-quick: $(STAMP)
	@if command -v spin >/dev/null && command -v cc >/dev/null; then $(BIN)/python formal/check.py --quick; \
	else echo "formal: Spin is not installed, so the model is not checked here; make formal installs it"; fi

# Without --upgrade the versions already in the file stay where they still fit. Extras are kept: older versions of pip
# look for the newest release of what is required with an extra and pinned without it, and refuse it for its hash.
lock: $(STAMP) ## resolve the dependencies anew into requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-strip-extras \
	  --no-emit-index-url --no-emit-find-links --extra node --extra bench --extra spark --group dev $(LOCK_ARGS) pyproject.toml -o requirements.lock
	@if grep -nE '://|file:' requirements.lock; then echo "requirements.lock must not hold addresses" >&2; exit 1; fi

bench: $(STAMP) ## measure four brokers under load, and the ordering core
	@./parley bench pub
	@./parley bench consensus

bench-quick: $(STAMP) ## the same, in seconds
	@./parley bench pub --runs 1 --seconds 5
	@./parley bench consensus --quick

docs: $(STAMP) ## check every link in the documents and print their index
	@$(BIN)/python tools/check_docs.py

clean: ## remove .venv, caches and results
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .coverage .coverage.* dist parley-demo twins-failures
	find src tests tools formal -name __pycache__ -type d -prune -exec rm -rf {} +
