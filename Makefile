# Every task of the project; `make help` lists them.
SHELL := /bin/sh
BIN := .venv/bin
JOBS ?= 4
SECONDS ?= 3600

.PHONY: help setup setup-dev services crawl test test-long fuzz check suites gates soak bench reference lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: ## leaves the command at .venv/bin/gossamer
	@scripts/setup

setup-dev: ## the same, with the tools for development
	@scripts/setup dev

services: ## system packages that tests need
	@scripts/services

crawl: setup ## a first crawl: of URL=https://..., or of a simulated web; ARGS="--max-pages 50" are passed on
	@scripts/crawl

test: setup-dev services check ## all checks, and the tests that take less than 30 s each
	$(BIN)/python -m pytest -rs -n $(JOBS)

test-long: setup-dev services ## the tests that take longer
	$(BIN)/python -m pytest -rs -n $(JOBS) -m long --timeout 1800

fuzz: setup-dev ## every parser with random input for 5 minutes: SECONDS_LEFT=60 for one, SEED=N to begin with
	@JOBS=$(JOBS) scripts/fuzz

check: setup-dev ## style, types and architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -p no:cacheprovider tests/test_architecture.py

suites: setup-dev services ## scores of the outside suites in ../shared/suites, then the hard gates
	$(BIN)/python tests/suites/run.py
	$(BIN)/python tests/suites/gates.py --jobs $(JOBS)

gates: setup-dev services ## the faults and hostile inputs that stop a release: no skips, no expected failures
	$(BIN)/python tests/suites/gates.py --jobs $(JOBS)

soak: setup-dev services ## a crawl at full rate with faults, an hour on each of two frontiers: SECONDS=900 for less
	$(BIN)/python scripts/soak --seconds $(SECONDS)

bench: setup-dev ## every script of benchmarks/, in turn
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

reference: setup-dev ## docs/reference, made from the code
	$(BIN)/python scripts/reference

lock: ## pins the newest versions that pyproject.toml allows
	@scripts/lock

clean: ## removes what the other targets made, but no crawls
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
