# Every recipe installs what it needs; `make` alone lists them.
#   VENV=.venv      the virtual environment        PYTHON=python3   the Python that makes it
#   ARGS=...        passed to pytest or the example: make test-unit ARGS="-k ledger -x", make test ARGS="-- -k ledger"
VENV ?= .venv
PYTHON ?= python3
ARGS ?=
BIN = $(VENV)/bin
READY = $(VENV)/.ready
# A test that hangs fails after 600 s.
PYTEST = $(BIN)/python -m pytest --timeout=600
LANES = $(BIN)/python scripts/run_tests.py
# Where `make test-newest` puts a Debian.
NEWEST ?= /tmp/acktree-debian-13
QUICK = acktree tests/unit tests/test_cookbook.py tests/test_tables.py
FOLDERS = acktree $(wildcard benchmarks examples)

.DEFAULT_GOAL := help
.PHONY: help setup flights orders service page test test-all test-changed test-quick test-unit test-spark coverage test-newest docs lint fmt types imports bench wheel lock \
        clean java

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(READY) ## The virtual environment, from the lock file, with acktree in it

$(READY): requirements-dev.lock pyproject.toml
	@PYTHON='$(PYTHON)' scripts/check_machine.sh python
	@echo "Setting up $(VENV). The first time takes some minutes: Spark is a download of 400 MB."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements-dev.lock
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

java:
	@scripts/check_machine.sh java

flights: java $(READY) ## 336,776 departures through Spark, each with its verdict
	$(BIN)/python examples/flights/flights.py $(ARGS)

orders: java $(READY) ## RabbitMQ to PostgreSQL, with poison and redrive; starts the servers (ARGS="--docker")
	$(BIN)/python -m examples.orders.orders $(ARGS)

service: java $(READY) ## The first service with its servers, and an account of each payment (ARGS="--kills", ARGS="--away 60")
	$(BIN)/python -m examples.first_service.trial $(ARGS)

page: java $(READY) ## The page with two topologies on Spark, until Ctrl-C (ARGS="--listen 8080")
	@$(BIN)/python -m examples.page.page $(ARGS)

test: java $(READY) ## What states a guarantee, in three lanes: with Spark, units, all else
	$(LANES) $(ARGS)

test-all: java $(READY) ## The long parts, too: chaos, clusters, all queues, simulators, every opcode
	$(LANES) --all $(ARGS)

test-changed: java $(READY) ## make test, and the long parts of what has changed since they passed
	$(LANES) --changed $(ARGS)

coverage: $(READY) ## How much of core its own tests reach
	$(PYTEST) -q --hypothesis-profile=ci --cov --cov-report=term-missing:skip-covered --cov-fail-under=99 \
	    acktree/core tests/unit/core tests/unit/tasks --ignore=tests/unit/tasks/bolts/test_interruptions.py

test-quick: java $(READY) ## A verdict in five minutes: small tests of each part, and the word count on Spark
	$(PYTEST) -q -x -m "not spark and not slow" $(QUICK) $(ARGS)
	$(BIN)/python -m pytest --timeout=600 -q -x examples/word_count $(ARGS)

docs: $(READY) ## The reference of the public names, from docstrings: docs/reference/index.html
	$(BIN)/python scripts/reference.py docs/reference

test-unit: $(READY) ## The tests that need neither Spark nor Java
	$(PYTEST) -m "not spark" $(ARGS)

test-spark: java $(READY) ## The tests on Spark
	$(PYTEST) -m spark $(ARGS)

test-newest: $(READY) ## The wheel on Python 3.13 with PySpark 4.2, in a Debian 13 of its own; as root, with debootstrap
	$(MAKE) --no-print-directory wheel
	scripts/newest_python.sh make $(NEWEST) && scripts/newest_python.sh test $(NEWEST) dist/acktree-*.whl

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

fmt: $(READY) ## Fix imports and format
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

types: $(READY) ## mypy --strict
	$(BIN)/mypy $(FOLDERS)

imports: $(READY) ## import-linter: imports between rooms (docs/architecture.md)
	$(BIN)/lint-imports

bench: java $(READY) ## Run a benchmark: make bench ARGS="word_count"
	$(BIN)/python -m benchmarks $(ARGS)

wheel: $(READY) ## dist/acktree-*.whl
	rm -f dist/acktree-*.whl
	$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --no-build-isolation --wheel-dir dist .

lock: $(READY) ## Write requirements-dev.lock from pyproject.toml
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --group dev \
	    --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' pyproject.toml -o requirements-dev.lock

clean: ## Delete what recipes made, the virtual environment too
	rm -rf $(VENV) benchmarks/.peers dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
