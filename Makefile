# Development tasks; `make help` lists them.
SHELL := /bin/sh
BIN := .venv/bin
JOBS ?= 4
# By default, each worker gets long runs of consecutive tests, and one with many slow tests finishes alone. With work
# stealing, idle workers take over tests from the others.
PARALLEL = -n $(JOBS) --dist=worksteal
# Tests that depend on third-party packages, or on files next to the code. TESTS=tests runs all tests.
TESTS ?= $(addprefix tests/,cli conformance download extract frontier imports middleware results scrapy_plugin service \
	lab storage crawl/test_whole_crawls.py fleet/test_fleet_commands.py deploy/test_systemd_slurm_ray.py \
	test_public_api.py test_settings.py test_urls.py)
# Fast tests: 25 s of CPU. FAST=tests/extract runs those of another package.
FAST ?= $(addprefix tests/,engine middleware imports lab/test_plan.py lab/test_sim_plan.py lab/test_sim_log.py test_cut.py test_public_api.py test_settings.py test_urls.py)
SECONDS ?= 3600

.PHONY: help setup setup-dev services crawl test test-fast test-long test-wheel test-lowest test-highest fuzz check suites gates \
	soak bench bench-all reference messages docs package lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: ## install into .venv; the command is .venv/bin/gossamer
	@scripts/setup

setup-dev: ## install with the development tools
	@scripts/setup dev

services: ## install the system packages that tests require
	@scripts/services

crawl: setup ## crawl URL=https://..., or a simulated web; ARGS="--max-pages 50" passes options
	@scripts/crawl

# Failed tests run again, one at a time. A test that passes then is flaky: the second run lists it by name, and it must
# be fixed, but it does not fail the build. A test that fails twice does.
test: setup-dev services check ## run all checks, and the tests of less than 30 s each
	$(BIN)/python -m pytest -rs $(PARALLEL) || { [ $$? -eq 1 ] && \
		echo "== Running the failed tests again, one at a time; tests that pass now are flaky:" && \
		$(BIN)/python -m pytest -rs -v --last-failed --last-failed-no-failures none; }

test-fast: setup-dev ## run the tests without servers, browsers, and whole crawls; under 2 minutes
	$(BIN)/python -m pytest $(PARALLEL) $(FAST)

test-long: setup-dev services ## run the tests of more than 30 s
	$(BIN)/python -m pytest -rs $(PARALLEL) -m long --timeout 1800

test-wheel: setup-dev services ## run the main tests against the wheel, without src/; TESTS=tests for all
	scripts/test-installed locked $(PARALLEL) $(TESTS)

test-lowest: setup-dev services ## like test-wheel, with the oldest dependencies that pyproject.toml allows
	scripts/test-installed lowest $(PARALLEL) $(TESTS)

test-highest: setup-dev services ## like test-wheel, with the newest dependencies
	scripts/test-installed highest $(PARALLEL) $(TESTS)

fuzz: setup-dev ## fuzz every parser for 5 minutes; SECONDS_LEFT=60 for one minute, SEED=N sets the first seed
	@JOBS=$(JOBS) scripts/fuzz

check: setup-dev ## lint, check types and architecture, and lint the dashboard's JavaScript
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	scripts/prose
	$(BIN)/oxlint --deny-warnings src/gossamer/service/static
	$(BIN)/python -m pytest -p no:cacheprovider tests/test_architecture.py

suites: setup-dev services ## score external test suites in ../shared/suites, then run the gates
	$(BIN)/python tests/suites/run.py
	$(BIN)/python tests/suites/gates.py --jobs $(JOBS)

gates: setup-dev services ## run the tests that block a release: faults and hostile inputs, without skips
	$(BIN)/python tests/suites/gates.py --jobs $(JOBS)

soak: setup-dev services ## crawl at full rate with faults, an hour on each of two frontiers; SECONDS=900 for less
	$(BIN)/python scripts/soak --seconds $(SECONDS)

bench: setup-dev services ## compare with other crawlers in separate environments; ARGS="--runs 7 --shape tls --scale 0.25"
	$(BIN)/python benchmarks/peers.py $(ARGS)

bench-all: setup-dev services ## run every script of benchmarks/
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

reference: setup-dev ## generate docs/reference and the man pages from the code
	$(BIN)/python scripts/reference
	$(BIN)/python scripts/manual

messages: setup-dev ## print all user-visible texts of the program; ARGS="cli jobs --kind error" for a part
	@$(BIN)/python scripts/messages $(ARGS)

package: setup-dev ## build the wheel and the sdist in dist/
	@scripts/package

docs: setup-dev ## build the documentation site in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lock: ## update the lock files to the newest versions that pyproject.toml allows
	@scripts/lock

clean: ## delete the files of all other targets, except crawls
	rm -rf .venv .bench .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage build dist site
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
