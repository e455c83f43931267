# Start with `make run` or `make test`. Each sets everything up first.

PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
READY := $(VENV)/ready
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo)

# No tool phones home.
export DVC_NO_ANALYTICS := true
export DO_NOT_TRACK := true
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export MLFLOW_DISABLE_TELEMETRY := true
export HF_HUB_DISABLE_TELEMETRY := 1
export ORT_DISABLE_TELEMETRY := 1
# Stages run as `python`, which has to be this project's interpreter.
export PATH := $(BIN):$(PATH)

.PHONY: run test check test-deployment test-clients lint size docs bench drill month setup system deploy clean help

run: setup  ## Run every stage from raw text to INT8 packages, release the models, and print the results
	$(BIN)/clozeline run

test: setup system  ## Run the tests on every core (PYTEST_ARGS=-n0: in one process); needs no GPU, and a network only for the set-up
	$(BIN)/python -m pytest -n auto -m "not deployment" $(PYTEST_ARGS)

INVENTORY := $(VENV)/inventory
INVENTORY_READY := $(INVENTORY)/ready

test-deployment: setup system $(INVENTORY_READY)  ## Run the stack of compose.yaml, the deployed flows, their alerts and twenty promotions at once, on real servers
	$(BIN)/python -m pytest -n auto -m deployment $(PYTEST_ARGS) tests/infra tests/registry

$(INVENTORY_READY): infra/inventory.lock
	$(PYTHON) -m venv $(INVENTORY)
	$(INVENTORY)/bin/python -m pip install --quiet --disable-pip-version-check --requirement infra/inventory.lock
	@touch $@

check: lint  ## Check style and types, and run the fast tests; for use after each edit
	$(BIN)/python -m pytest -n auto -m "not slow" $(PYTEST_ARGS)

CLIENTS := $(VENV)/clients
CLIENTS_READY := $(CLIENTS)/ready

test-clients: setup $(CLIENTS_READY)  ## Run schemathesis and the clients whose pins exclude ours, from an environment of their own
	$(BIN)/python -m tests.clients $(CURDIR)/$(CLIENTS)/bin/python

$(CLIENTS_READY): tests/clients/requirements.lock
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/clients/requirements.lock
	@touch $@

lint: setup  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

size: setup  ## Print the size of the code and of its rooms; tests/house/test_size.py holds each figure to a limit
	@$(BIN)/python -m tests.house.size

SITE := $(VENV)/docs

docs: $(SITE)/ready  ## Build a site of docs/ and of the Python API's docstrings in work/site
	@rm -rf work/pages && mkdir -p work/pages
	@cp --parents README.md CHANGELOG.md CONTRIBUTING.md LICENSE docs/*.md docs/images/* infra/README.md tests/*.md tests/benchmarks/*.yaml work/pages
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --quiet --strict
	@echo "open work/site/index.html"

$(SITE)/ready: docs/requirements.lock
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --requirement docs/requirements.lock
	@touch $@

bench: setup  ## Benchmark Clozeline beside its alternatives; NAME=… runs one benchmark, ARGS='…' are its options
	@$(BIN)/python tests/benchmarks $(if $(findstring command,$(origin NAME)),$(NAME)) $(ARGS)

ROUNDS := 20

drill: setup system  ## Kill runs, pushes, releases, a worker and each server (ROUNDS=20; ARGS=--outage-seconds=60 for short outages)
	@$(BIN)/python -m tests.drill --rounds $(ROUNDS) $(ARGS)

NIGHTS := 30
SEED := 0

month: setup system  ## Live through thirty nights with kills, outages, bad feeds and bad models, and audit them (NIGHTS=30, SEED=0; an hour or more)
	@$(BIN)/python -m tests.month --nights $(NIGHTS) --seed $(SEED) $(ARGS)

setup: $(READY)  ## Create .venv with the packages of requirements.lock

$(READY): requirements.lock infra/ray.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Clozeline needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=…")'
	@echo "Installing 2.6 GB of packages into $(VENV): 3 to 5 minutes, without output."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock --requirement infra/ray.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

APT_INSTALL := DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends

system:  ## Install Debian's PostgreSQL, Chromium, promtool, bubblewrap, ssh-keygen and haproxy if they are missing: tests start real servers and a browser
	@ls /usr/lib/postgresql/*/bin/postgres > /dev/null 2>&1 || command -v postgres > /dev/null \
		|| { echo "installing PostgreSQL"; $(AS_ROOT) sh -c 'apt-get -qq update && $(APT_INSTALL) postgresql > /dev/null'; } \
		|| { echo "make test needs PostgreSQL 15 or newer: install it (Debian's package is called postgresql), then run again" >&2; exit 1; }
	@command -v promtool > /dev/null \
		|| { echo "installing Prometheus's promtool"; $(AS_ROOT) sh -c 'apt-get -qq update && $(APT_INSTALL) prometheus > /dev/null'; } \
		|| { echo "make test needs promtool: install it (Debian's package is called prometheus), then run again" >&2; exit 1; }
	@command -v bwrap > /dev/null \
		|| { echo "installing bubblewrap"; $(AS_ROOT) sh -c 'apt-get -qq update && $(APT_INSTALL) bubblewrap > /dev/null'; } \
		|| { echo "make test needs bubblewrap: install it (Debian's package has that name), then run again" >&2; exit 1; }
	@command -v ssh-keygen > /dev/null \
		|| { echo "installing OpenSSH's ssh-keygen"; $(AS_ROOT) sh -c 'apt-get -qq update && $(APT_INSTALL) openssh-client > /dev/null'; } \
		|| { echo "make test needs ssh-keygen: install it (Debian's package is called openssh-client), then run again" >&2; exit 1; }
	@command -v haproxy > /dev/null \
		|| { echo "installing haproxy"; $(AS_ROOT) sh -c 'apt-get -qq update && $(APT_INSTALL) haproxy > /dev/null'; } \
		|| { echo "make test-deployment needs haproxy: install it (Debian's package has that name), then run again" >&2; exit 1; }
	@{ command -v chromium && command -v chromedriver; } > /dev/null \
		|| { echo "installing Chromium"; $(AS_ROOT) sh -c 'apt-get -qq update && $(APT_INSTALL) chromium chromium-driver > /dev/null'; } \
		|| { echo "make test needs Chromium and its driver: install them (Debian's packages are called chromium and chromium-driver), then run again" >&2; exit 1; }

deploy: setup  ## Apply infra/prefect.yaml to the Prefect server at PREFECT_API_URL
	$(BIN)/python -m clozeline.flows.deploy

clean:  ## Remove the outputs of the stages; the next run restores them from DVC's cache
	rm -rf data/clean data/tokens models dist metrics plots reports

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14
