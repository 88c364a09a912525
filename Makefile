# Every target sets up what it needs by itself. Only Python >= 3.11 is assumed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools
# More than there are cores: tests on real processes wait more than they compute. Those of the fast tier compute.
WORKERS ?= 4
FAST_WORKERS ?= 3
# Some images set it; then every worker would compile every test anew, which takes longer than the fast tier's tests.
unexport PYTHONDONTWRITEBYTECODE
# Of what pip says: the names of the packages, as they come, and what went wrong.
SHOW := $(PYTHON) -uc 'import sys; [print(" ", line.partition(" (from")[0].strip()) for line in sys.stdin \
	if line.strip().startswith(("Obtaining", "Collecting", "Building", "Installing", "ERROR"))]'

.PHONY: help up demo test test-fast test-thorough mutate lint image bench gpu-test soak soak-agent soak-sim docs pictures clean
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

# What the product needs, and no more; each package is named as it comes.
$(READY): pyproject.toml
	@echo "setting up $(VENV) (once): a Python environment with what Sickbay needs …"
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=…" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) && echo "  the environment is there; now the packages"
	@rm -f $@
	@{ $(BIN)/pip install --disable-pip-version-check -e . && touch $@; } | $(SHOW)
	@test -f $@

# Besides: what tests, style checks and documents are made with.
$(TOOLS): $(READY) requirements-dev.txt
	@echo "adding the development kit to $(VENV) (once, some minutes) …"
	@rm -f $@
	@{ $(BIN)/pip install --disable-pip-version-check -r requirements-dev.txt -e '.[postgres]' && touch $@; } | $(SHOW)
	@test -f $@

up: $(READY)  ## a real local cluster: a job, a fault, the cure; then it goes on serving (ctrl-c ends it)
	@$(BIN)/sickbay up --demo

demo: $(READY)  ## the same without staying; exit 0 only if all healed
	@$(BIN)/sickbay demo

# The first time each worker would compile all tests by itself; so two processes do it for them, half of them each.
COMPILED := tests/unit/__pycache__
$(COMPILED): | $(TOOLS)
	@$(BIN)/pytest --collect-only -qq tests/unit >/dev/null & \
	$(BIN)/pytest --collect-only -qq $(filter-out tests/unit/ tests/gpu/ tests/fixtures/ tests/support/,$(wildcard tests/*/)) >/dev/null; wait

test: $(TOOLS) $(COMPILED)  ## all tests
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal -q

test-fast: $(TOOLS) $(COMPILED)  ## the fast tier, under 60 seconds on two idle cores
	@$(BIN)/pytest -n $(FAST_WORKERS) --dist worksteal -q -m "not slow"

test-thorough: $(TOOLS) $(COMPILED)  ## all tests, and the deaths at every single point (some minutes more)
	@SICKBAY_THOROUGH=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal -q

mutate: $(TOOLS)  ## would a test notice? changes decisions one by one: make mutate ARGS='brain/admit.py'
	@$(BIN)/python .ci/mutate.py $(ARGS)

lint: $(TOOLS)  ## style, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@PYTHONPATH=src $(BIN)/lint-imports

image: $(READY)  ## the container image, as an OCI archive below build/image; needs Debian 12, but no container engine and no root
	@$(BIN)/python deploy/image/build.py $(ARGS)

bench: $(TOOLS)  ## the figures, as ratios measured side by side
	@$(BIN)/python -m bench

gpu-test: $(TOOLS)  ## on a machine with an NVIDIA GPU: the real thing
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[nvidia]'
	@$(BIN)/pytest -q -m gpu tests/gpu

soak: $(TOOLS)  ## 200 jobs over 64 nodes of real processes, faults at random for ten minutes
	@$(BIN)/python -m tests.support.fleet_soak $(ARGS)

soak-agent: $(TOOLS)  ## an agent with rotated logs, a mad controller, a full disk and kill -9: make soak-agent ARGS='--minutes 10'
	@$(BIN)/python -m tests.support.agent_soak $(ARGS)

soak-sim: $(READY)  ## as many simulated random runs as you like: make soak-sim RUNS=100000
	@$(BIN)/sickbay sim soak --runs $(or $(RUNS),2000)

docs: $(TOOLS)  ## regenerate the pages that are made from the code
	@$(BIN)/python docs/generate.py

pictures: $(TOOLS)  ## draw the pictures of the documents anew, from a real run
	@$(BIN)/python docs/picture.py

clean:  ## remove what the other targets made
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache mutants
