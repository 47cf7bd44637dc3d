# `make serve` and `make test` need Python 3.11 or newer and a package registry, nothing else.
PYTHON ?= python3
PORT ?= 8080
CONFIG ?=
# yes: the versions and hashes of requirements/, for Python 3.11 to 3.14 on Linux and macOS 14 for ARM.
# no: any versions that pyproject.toml allows, for other platforms.
LOCKED ?= yes
# How tests are spread over processes: a file is never split, so that it starts its servers once. Many tests
# wait for servers, so there is one process more than there are cores.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PARALLEL ?= -n $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# Recorded answers; `make train` downloads those that are missing.
DATA ?= $(or $(SWITCHCRAFT_DATA),$(firstword $(wildcard ../shared/data) data))
RECORDINGS := bfcl-v4-2025-12 bfcl-2024-08 bfcl-v3-8b bfcl-v4-gptoss
MISSING = $(filter-out $(notdir $(wildcard $(RECORDINGS:%=$(DATA)/%))),$(RECORDINGS))

VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false

# Installs what locks hold: $(call locked,NAME NAME). uv takes a fifth of pip's time, but does not read
# the index that pip is configured with: pip is asked if uv fails.
HASHED = --quiet --no-deps --require-hashes $(1:%=--requirement requirements/%.lock)
locked = $(if $(filter yes,$(LOCKED)),$(BIN)/uv pip install --python $(BIN)/python $(HASHED) || $(BIN)/pip install $(HASHED))
INSTALL := $(BIN)/pip install --quiet $(if $(filter yes,$(LOCKED)),--no-build-isolation)

# Extras of a gateway, as in the images, beside its runtime `cpu` or `gpu`; and of a checkout.
SERVING := redis,postgres,aws,google,azure,otlp
CHECKOUT := cpu,$(SERVING),train

# Caches of compiled modules make each start of a process faster, of which the tests have hundreds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test test-all durations test-packages test-fast test-lowest test-agents check-hostile walks pytest check lint format types docs train lock audit sbom release clean

## serve: the gateway on 127.0.0.1:$(PORT), with a sandbox upstream where CONFIG names none
serve: $(VENV)/.serve
	$(BIN)/switchcraft serve --port $(PORT) $(if $(CONFIG),--config $(CONFIG))

# Each process computes with one thread, because waiting threads of several processes would keep the
# cores busy. schemathesis' plugin takes a second of each process, and only slow tests need it.
PYTEST := OMP_NUM_THREADS=1 SWITCHCRAFT_DATA=$(DATA) $(BIN)/pytest
DEBIAN := @$(BIN)/python -m tests.debian || true
QUICK := $(PYTEST) -p no:schemathesis -m "not slow"

## test: what CI runs for each change: lint, types, import contracts, and all tests that are not slow
test: lint types pytest

pytest: $(VENV)/.dev
	$(DEBIAN)
	$(QUICK) $(PARALLEL)

## test-all: everything, before a release
test-all: lint types
	$(DEBIAN)
	$(PYTEST) $(PARALLEL)

## durations: all tests, and tests/durations.json, which has how long their files take
durations: $(VENV)/.dev
	$(PYTEST) $(PARALLEL) --record-durations

## test-packages: what tests need of Debian's packages; `make test` installs what is missing, as root
test-packages: $(VENV)/.dev
	@$(BIN)/python -m tests.debian

FAST := tests/router_service tests/training/checking tests/training/decisions tests/training/replay
## test-fast: the tests without processes, browsers and training
test-fast: $(VENV)/.dev
	$(QUICK) $(PARALLEL) $(FAST)

## walks: what the documents tell new users to do, with screenshots of each step in walks/
walks: $(VENV)/.dev
	$(DEBIAN)
	rm -rf walks
	WALK_SCREENSHOTS=$(CURDIR)/walks $(PYTEST) -p no:schemathesis tests/walks

## check-hostile: the attacks and changes of them in their long form
check-hostile: $(VENV)/.dev
	HOSTILE=long OMP_NUM_THREADS=1 $(BIN)/pytest -p no:schemathesis --timeout 3600 tests/hostile tests/fuzz

# The lowest versions come first on the path, and the tools of the tests from the usual environment.
LOWEST := $(VENV)/lowest
## test-lowest: the fast tests of the service with the lowest versions that pyproject.toml allows
test-lowest: $(VENV)/.dev
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[cpu,$(SERVING)]'
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" \
		> "$$($(LOWEST)/bin/python -c 'import site; print(site.getsitepackages()[0])')/tools.pth"
	OMP_NUM_THREADS=1 SWITCHCRAFT_DATA=$(DATA) $(LOWEST)/bin/python -m pytest -p no:schemathesis -m "not slow" $(PARALLEL) tests/router_service

## test-agents: Claude Code, Codex CLI, OpenCode and Cline with scripted models; needs npm and downloads 1.6 GB
test-agents: $(VENV)/agents/.installed
	$(BIN)/python -m tests.agents $(VENV)/agents/node_modules/.bin

$(VENV)/agents/.installed: tests/agents/package.json $(VENV)/.dev
	mkdir -p $(@D)
	cp $< $(@D)
	npm install --prefix $(@D) --no-audit --no-fund --no-package-lock
	touch $@

## check: format, lint, types and import contracts
check: lint types

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

## format: the Python code, and with Node.js the page's JavaScript, CSS and HTML
format: $(VENV)/.dev
	$(BIN)/ruff format .
	npx --yes @biomejs/biome@$$(node --print "require('./tests/page/node/package.json').dependencies['@biomejs/biome']") \
		format --write router_service/ui/web

types: $(VENV)/.dev
	$(BIN)/pyrefly check
	$(BIN)/lint-imports --no-cache

SITE ?= site
## docs: the documentation as a web site in $(SITE)/
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir $(SITE)

## train: the shipped artifact, from the recorded answers in $(DATA); downloads 44 MB if it has none
train: $(VENV)/.dev
	$(if $(MISSING),$(BIN)/switchcraft-train fetch $(MISSING) --data $(DATA))
	$(BIN)/switchcraft-train run configs/frontier-2025-12.yaml --data $(DATA) --out runs/frontier-2025-12

## lock: requirements/*.lock from pyproject.toml; UPGRADE=--upgrade takes the newest versions
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command 'make lock' $(UPGRADE)
lock: $(VENV)/.python
	$(COMPILE) pyproject.toml --extra cpu,$(SERVING) -o requirements/cpu.lock
	$(COMPILE) pyproject.toml --extra gpu,$(SERVING) -c requirements/cpu.lock -o requirements/gpu.lock
	$(COMPILE) --group build -o requirements/build.lock
	$(COMPILE) --group installer -o requirements/installer.lock
	$(COMPILE) --group sbom -c requirements/cpu.lock -c requirements/build.lock -o requirements/sbom.lock
	$(COMPILE) pyproject.toml --extra $(CHECKOUT) --group dev --override requirements/without-torch.txt \
		--no-emit-package pip -c requirements/cpu.lock -c requirements/build.lock -c requirements/sbom.lock \
		-c requirements/installer.lock -o requirements/dev.lock
	$(COMPILE) --no-deps --group no-deps -o requirements/no-deps.lock

## audit: known vulnerabilities of what the images hold; needs the index's vulnerability service
audit: $(VENV)/.dev
	for lock in cpu gpu build sbom installer; do \
		$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement requirements/$$lock.lock || exit; done

## sbom: sbom.cdx.json, the CycloneDX list of the CPU image's Python packages (the image holds its own)
sbom: $(VENV)/.python
	PATH="$(CURDIR)/$(BIN):$$PATH" sh deploy/install.sh cpu $(VENV)/image
	cp $(VENV)/image/sbom.cdx.json .

## release: wheel, sdist, image, SBOM, documentation and release notes in dist/; uploads nothing
release: $(VENV)/.dev
	$(BIN)/python deploy/release.py

clean:
	rm -rf $(VENV) runs .ruff_cache .pytest_cache

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(if $(filter yes,$(LOCKED)),--require-hashes --requirement requirements/installer.lock,uv)
	touch $@

$(VENV)/.serve: $(VENV)/.python pyproject.toml requirements/build.lock requirements/cpu.lock
	$(call locked,build cpu)
	$(INSTALL) --editable '.[cpu,$(SERVING)]'
	touch $@

# The locks leave out torch, which pip then takes in the version that pyproject.toml names. Without
# locks, pip has to be new enough for dependency groups, which is 25.1.
$(VENV)/.dev: $(VENV)/.serve requirements/dev.lock requirements/no-deps.lock
	$(call locked,dev no-deps)
	$(if $(filter yes,$(LOCKED)),,$(BIN)/pip install --quiet 'pip>=25.1')
	$(INSTALL) --editable '.[$(CHECKOUT)]' $(if $(filter yes,$(LOCKED)),,--group dev)
	$(if $(filter yes,$(LOCKED)),,$(BIN)/pip install --quiet --no-deps --require-hashes --requirement requirements/no-deps.lock)
	touch $@
