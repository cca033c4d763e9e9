# Thin: the names that an operator types, one line each. The work is in ops/, scripts/ and the tools themselves.
# ARGS passes options on: make keys ARGS="create --name alice"
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
PYTHON_BIN := .venv/bin/python
OPS := setup up down logs status model keys ca

.PHONY: help $(OPS) demo test test-fast lint bench lock-deps wheels

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: ## run the gateway on this machine, without Docker or a GPU, in front of a stand-in engine
	@scripts/env.sh ops
	@exec $(PYTHON_BIN) -m ops demo $(ARGS)

setup: ## write .env and strong secrets; never overwrites
up: ## start the stack (docker compose up underneath)
down: ## stop the stack; data and models stay
logs: ## follow the stack's logs
status: ## show what runs, and how it is
model: ## fetch the model that .env selects, once, resumable and verified
keys: ## make, change, rotate and end API keys, show their use: make keys ARGS="create --name alice"
ca: ## write the certificate authority that clients of this host must trust
$(OPS):
	@scripts/env.sh ops
	@exec $(PYTHON_BIN) -m ops $@ $(ARGS)

test: ## install what the tests need, run all that this machine can, say what was left out
	@scripts/env.sh dev
	@$(PYTHON_BIN) -m pytest --cov --cov-report=term --durations=10 --durations-min=5 $(ARGS)

test-fast: ## unit and gateway tests only, in under a minute
	@scripts/env.sh dev
	@$(PYTHON_BIN) -m pytest -n 3 --dist worksteal tests/unit tests/gateway $(ARGS)

lint: ## check code, types, shell, Dockerfiles, YAML, compose files and generated dashboards
	@scripts/env.sh dev
	@PATH="$(CURDIR)/.venv/bin:$$PATH" scripts/lint.sh

bench: ## measure the gateway beside a bare relay
	@scripts/env.sh ops bench
	@exec $(PYTHON_BIN) -m bench $(ARGS)

lock-deps: ## resolve pyproject.toml into uv.lock again
	@scripts/env.sh ops
	@UV_SYSTEM_CERTS=true build/bootstrap/bin/uv lock $(ARGS)

wheels: ## fetch what the images need to be built without a network, into build/wheels
	@scripts/env.sh ops
	@PATH="$(CURDIR)/build/bootstrap/bin:$$PATH" scripts/wheels.sh build/wheels gateway model
