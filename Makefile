# Every target needs Python 3.11 or newer and nothing else; the first run sets up .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Every install goes through the constraints, or a package may pull in another torch.
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
SETUP := pyproject.toml constraints.txt

export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit docs dist clean browser reproduce

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 14

demo: $(VENV)/.package ## prune a trained network on real digits, and prove the cut
	@$(BIN)/secateur demo

test: lint types unit docs ## run everything that a change must pass

lint: $(VENV)/.tools ## check style and formatting
	@echo '== ruff'
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(VENV)/.tools ## check types
	@echo '== mypy'
	@$(BIN)/mypy

unit: $(VENV)/.tools $(VENV)/.docs browser ## run the tests
	@echo '== pytest'
	@$(BIN)/pytest

browser: # tests of the report page need one; without root or apt they are skipped, with a message
	@command -v chromium >/dev/null 2>&1 || { \
		echo '== installing Chromium, for tests of the report page'; \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 \
		&& { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1; } \
		|| echo 'no Chromium: the tests that need a browser will be skipped'

docs: $(VENV)/.docs ## build the documentation in site/; a warning is an error
	@echo '== sphinx'
	@rm -rf site
	@$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --fresh-env --doctree-dir $(VENV)/doctrees docs site
	@echo 'open site/index.html'

reproduce: $(VENV)/.tools ## run miniatures of the paper's tables and figures, in under 20 minutes; needs the data sets
	@$(BIN)/secateur reproduce all --quick --runs runs

dist: $(VENV)/.tools ## build the sdist and the wheel in dist/
	@echo '== hatchling'
	@rm -rf dist
	@$(BIN)/python -m hatchling build

clean: ## remove .venv and everything generated
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is older than pyproject.toml or constraints.txt only if these have changed since the installation.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'secateur needs Python 3.11 or newer; say which: make PYTHON=python3.12 ...' >&2; exit 1; }
	@echo '== creating $(VENV)'
	@$(PYTHON) -m venv $(VENV) \
		|| { rm -rf $(VENV); echo 'Python has no venv module here (Debian: apt install python3-venv)' >&2; exit 1; }

$(VENV)/.package: $(SETUP) | $(BIN)/python
	@echo '== installing torch (the large one)'
	@$(INSTALL) torch
	@echo '== installing secateur'
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.tools: $(VENV)/.package
	@echo '== installing the test tools'
	@$(INSTALL) --editable '.[dev,onnx,tensorboard,zoo]'
	@touch $@

$(VENV)/.docs: $(VENV)/.package
	@echo '== installing the documentation tools'
	@$(INSTALL) --editable '.[docs]'
	@touch $@
