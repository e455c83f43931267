# Two commands are all one needs: `make run` and `make test`. Each sets everything up first.

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
# Stages are started as `python`: let that be this project's.
export PATH := $(BIN):$(PATH)

.PHONY: run test test-clients lint bench setup system deploy clean help

run: setup  ## From raw text to a served INT8 encoder: every stage, the release, and a table of what came out
	$(BIN)/clozeline run

test: setup system  ## Every test, on every core (PYTEST_ARGS=-n0: in this process); no GPU, and no network beyond the set-up
	$(BIN)/python -m pytest -n auto $(PYTEST_ARGS)

CLIENTS := $(VENV)/clients
CLIENTS_READY := $(CLIENTS)/ready

test-clients: setup $(CLIENTS_READY)  ## Clients whose pins exclude ours, and schemathesis, from an environment of their own
	$(BIN)/python -m tests.clients $(CURDIR)/$(CLIENTS)/bin/python

$(CLIENTS_READY): tests/clients/requirements.lock
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/clients/requirements.lock
	@touch $@

lint: setup  ## Style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup  ## Ours beside what one would use instead; one of them with NAME=…, its options in ARGS='…'
	@$(BIN)/python tests/benchmarks $(if $(findstring command,$(origin NAME)),$(NAME)) $(ARGS)

setup: $(READY)  ## .venv with everything that requirements.lock names

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Clozeline needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=…")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

APT_INSTALL := DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends

system:  ## Debian's PostgreSQL (PATH or /usr/lib/postgresql) and Chromium: tests start a real server, and a real browser
	@ls /usr/lib/postgresql/*/bin/postgres > /dev/null 2>&1 || command -v postgres > /dev/null \
		|| { echo "installing PostgreSQL"; $(AS_ROOT) sh -c 'apt-get -qq update && $(APT_INSTALL) postgresql > /dev/null'; } \
		|| { echo "make test needs PostgreSQL 15 or newer: install it (Debian's package is called postgresql), then run again" >&2; exit 1; }
	@{ command -v chromium && command -v chromedriver; } > /dev/null \
		|| { echo "installing Chromium"; $(AS_ROOT) sh -c 'apt-get -qq update && $(APT_INSTALL) chromium chromium-driver > /dev/null'; } \
		|| { echo "make test needs Chromium and its driver: install them (Debian's packages are called chromium and chromium-driver), then run again" >&2; exit 1; }

deploy: setup  ## Make the Prefect server at PREFECT_API_URL agree with infra/prefect.yaml
	$(BIN)/python -m clozeline.flows.deploy

clean:  ## Remove what the stages made; DVC's cache keeps it, so the next run restores it
	rm -rf data/clean data/tokens models dist metrics plots reports

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14
