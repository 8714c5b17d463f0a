# One word does one thing, and does all of it: each target first makes what it needs.
PYTHON ?= python3
JOBS ?= 3
ARGS ?=
VENV ?= .venv

BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick portable check bench deep theirs adk bounds docs lock clean

help: ## list the commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-15s %s\n", $$1, $$2 }'
	@echo
	@echo '  PYTHON=python3.13 VENV=.venv-3.13 chooses an interpreter and its folder; ARGS="..." goes to the command that is run.'

setup: ## make .venv: keepstate with all extras, the tools and the real servers; build the inspector (at once if nothing changed)
	@$(PYTHON) tools/bootstrap.py --venv $(VENV)

demo: setup ## let four agents index the standard library's source: killed, paused, resumed, no update lost
	@$(BIN)/python -m examples.demo $(ARGS)

test: setup ## run all tests but the deep ones, on real servers (JOBS=0: in one process)
	@$(PYTEST) -q -n $(JOBS) --dist worksteal $(ARGS)

quick: setup ## run the inner loop, in a minute: fast tests on memory and SQLite; no other backend, adapter or command
	@$(PYTEST) -q -n $(JOBS) --dist worksteal --quick $(ARGS)

portable: setup ## run the tests that need no server, as .ci/run does on each other Python
	@$(PYTEST) -q -n $(JOBS) --dist worksteal --serverless $(ARGS)

check: setup ## format, lint, types, layers, generated twins, sizes
	@$(BIN)/python tools/check.py

bench: setup ## run the tests that judge by time, measure each budget against the raw driver and others, and write bench/results.json
	@$(PYTHON) tools/bootstrap.py --bench
	@$(PYTEST) -q -n 0 -m timed
	@$(BIN)/python -m bench $(ARGS)

deep: JOBS = 2
deep: setup ## run the long proof, about an hour, and write what it did into docs/reliability.json
	@$(PYTEST) -q -n $(JOBS) --dist worksteal -m "deep or searched" --record \
		--hypothesis-profile=deep --hypothesis-seed=$${KEEPSTATE_SEED:-0} --timeout=900 -o faulthandler_timeout=1800 $(ARGS)

theirs: setup ## run frameworks' own tests on our adapters, in 25 minutes; those of ADK and the Agent Framework from checkouts in THEIRS_TREES
	@$(PYTEST) -q -m theirs --timeout=1200 -o faulthandler_timeout=1800 $(ARGS)

adk: setup ## run the tests of the adapter for Google's ADK, whose packages are in a folder of their own
	@$(PYTHON) tools/bootstrap.py --venv $(VENV) --google-adk
	@PYTHONPATH=$(CURDIR)/$(VENV)/google-adk $(PYTEST) -q -n 0 tests/adapters/google_adk $(ARGS)

bounds: setup ## try each framework at its lowest version on embedded stores (ARGS="--newest mcp": at the newest one, of one extra)
	@$(BIN)/python tools/bounds.py $(ARGS)

docs: setup ## run every example and command in the documents
	@$(PYTEST) -q tests/docs $(ARGS)

lock: setup ## resolve the newest versions again into requirements-dev.txt, -bench.txt, -google-adk.txt and -inspector.txt
	@rm -f uv.lock
	@$(BIN)/uv export --quiet --python $(BIN)/python --all-extras --no-extra google-adk --group test --no-emit-project --no-header --no-annotate \
		--output-file requirements-dev.txt
	@$(BIN)/uv export --quiet --python $(BIN)/python --only-group bench --no-emit-project --no-header --no-annotate \
		--output-file requirements-bench.txt
	@$(BIN)/uv export --quiet --python $(BIN)/python --extra google-adk --no-default-groups --no-emit-project --no-header --no-annotate \
		--output-file requirements-google-adk.txt
	@$(BIN)/uv export --quiet --python $(BIN)/python --only-group inspector --no-emit-project --no-header --no-annotate \
		--output-file requirements-inspector.txt
	@$(PYTHON) tools/bootstrap.py --venv $(VENV)

clean: ## remove .venv, those of other Pythons and what the tools left
	@rm -rf .venv .venv-3.* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis uv.lock
