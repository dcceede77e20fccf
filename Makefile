# Every task of the project; `make help` lists them.
SHELL := /bin/sh
BIN := .venv/bin
JOBS ?= 4
# What depends on packages of others, or on files beside the code; some minutes. TESTS=tests for all there are.
TESTS ?= $(addprefix tests/,cli conformance download extract frontier imports middleware results scrapy_plugin service \
	lab storage crawl/test_whole_crawls.py fleet/test_fleet_commands.py deploy/test_other_ways.py \
	test_public_api.py test_settings.py test_urls.py)
# Quick ones: most bugs show there first. 25 s of CPU; FAST=tests/extract for another room.
FAST ?= $(addprefix tests/,engine middleware imports lab/test_plan.py lab/test_sim_plan.py lab/test_sim_log.py test_cut.py test_public_api.py test_settings.py test_urls.py)
SECONDS ?= 3600

.PHONY: help setup setup-dev services crawl test test-fast test-long test-wheel test-lowest test-highest fuzz check suites gates \
	soak bench bench-all reference messages docs package lock clean

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

# A test that depends on the load of the machine is a defect, and is listed by name in the second run; it does not
# fail the build of everybody else. What fails twice does.
test: setup-dev services check ## all checks, and the tests that take less than 30 s each
	$(BIN)/python -m pytest -rs -n $(JOBS) || { [ $$? -eq 1 ] && \
		echo "== Failed tests run once more, one at a time; those that pass now are flaky:" && \
		$(BIN)/python -m pytest -rs -v --last-failed --last-failed-no-failures none; }

test-fast: setup-dev ## the tests without servers, browsers and whole crawls, for the inner loop; under 2 minutes
	$(BIN)/python -m pytest -n $(JOBS) $(FAST)

test-long: setup-dev services ## the tests that take longer
	$(BIN)/python -m pytest -rs -n $(JOBS) -m long --timeout 1800

test-wheel: setup-dev services ## the core of the tests from the wheel, without the source folder; TESTS=tests for all
	scripts/test-installed locked -n $(JOBS) $(TESTS)

test-lowest: setup-dev services ## the same with the oldest dependencies that pyproject.toml allows
	scripts/test-installed lowest -n $(JOBS) $(TESTS)

test-highest: setup-dev services ## the same with the newest that there are
	scripts/test-installed highest -n $(JOBS) $(TESTS)

fuzz: setup-dev ## every parser with random input for 5 minutes: SECONDS_LEFT=60 for one, SEED=N to begin with
	@JOBS=$(JOBS) scripts/fuzz

check: setup-dev ## style, types and architecture, of Python and of the dashboard's JavaScript
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/oxlint --deny-warnings src/gossamer/service/static
	$(BIN)/python -m pytest -p no:cacheprovider tests/test_architecture.py

suites: setup-dev services ## scores of the outside suites in ../shared/suites, then the hard gates
	$(BIN)/python tests/suites/run.py
	$(BIN)/python tests/suites/gates.py --jobs $(JOBS)

gates: setup-dev services ## the faults and hostile inputs that stop a release: no skips, no expected failures
	$(BIN)/python tests/suites/gates.py --jobs $(JOBS)

soak: setup-dev services ## a crawl at full rate with faults, an hour on each of two frontiers: SECONDS=900 for less
	$(BIN)/python scripts/soak --seconds $(SECONDS)

bench: setup-dev services ## beside the peers, which get environments of their own: ARGS="--runs 7 --shape tls --scale 0.25"
	$(BIN)/python benchmarks/peers.py $(ARGS)

bench-all: setup-dev services ## every script of benchmarks/, in turn
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

reference: setup-dev ## docs/reference and the manual, made from the code
	$(BIN)/python scripts/reference
	$(BIN)/python scripts/manual

messages: setup-dev ## print every text of the program that people read: ARGS="cli jobs --kind error" for a part
	@$(BIN)/python scripts/messages $(ARGS)

package: setup-dev ## the wheel and the sdist, in dist/
	@scripts/package

docs: setup-dev ## the documents as a site, in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lock: ## pins the newest versions that pyproject.toml allows
	@scripts/lock

clean: ## removes what the other targets made, but no crawls
	rm -rf .venv .bench .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage build dist site
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
