# Every target that needs the environment makes it first: there is nothing to install by hand.
# PYTHON=python3.12  the interpreter that .venv is made with      ARGS="..."  passed on to what a target runs

PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup run test crash fuzz everything rllib sanitize stress model bench bench-peers parity lint wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup:  ## .venv, pinned packages, native core (the other targets call it)
	@$(PYTHON) tools/setup.py

run: setup  ## RLlib's DQN, stock and then through Conduit, with a report (ARGS=--plain: PyTorch alone)
	@$(BIN)/python tools/demo.py $(ARGS)

test: setup  ## all tests but the long campaigns, about a quarter of an hour on two cores
	@$(PYTEST) -m "not slow" $(ARGS)

crash: setup  ## the crash campaign: kill and stop processes at every failpoint, thousands of times
	@$(BIN)/python -m tests.crash.campaign $(ARGS)

rllib: setup  ## all RLlib scenarios, also those with processes that die and with Tune
	@$(PYTEST) tests/integration/test_rllib.py $(ARGS)

stress: setup  ## many processes, for long
	@$(PYTEST) tests/stress --timeout=0 $(ARGS)

model: setup  ## explore the models of the protocols exhaustively
	@$(PYTEST) tests/model --timeout=0 $(ARGS)

fuzz: setup  ## what reads bytes of others, 2 million inputs each (ARGS="--seconds 10" for less)
	@$(BIN)/python -m tests.fuzz $(ARGS)

everything: setup  ## all that one can do with tables, beside a model, in thousands of seeds
	@$(PYTEST) tests/property/test_everything.py -m slow $(ARGS)

sanitize: setup  ## the native core under ThreadSanitizer, AddressSanitizer and UBSan
	@$(BIN)/python tools/sanitize.py $(ARGS)

bench: setup  ## measure beside a NumPy ring and what C reaches, and how costs grow; results in bench/results
	@$(BIN)/python -m bench compare --drivers conduit,numpy-ring --name bench $(ARGS)
	@$(BIN)/python -m bench.growth

bench-peers: setup  ## the same cases beside other libraries, which get environments of their own
	@$(BIN)/python -m bench peers --setup
	@$(BIN)/python -m bench compare $(ARGS)
	@$(BIN)/python -m bench.sequences --out bench/results

lint: setup  ## ruff, mypy --strict, pyright, import-linter
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/pyright
	@$(BIN)/lint-imports

parity: setup  ## does RLlib learn the same through Conduit? five seeds, hours, resumable
	@$(BIN)/python -m bench.parity $(ARGS)

wheel: setup  ## dist/conduit_edp-*.whl
	@$(BIN)/pip wheel -q --no-build-isolation --no-deps -w dist .
	@ls dist/*.whl

clean:  ## remove everything that make has made
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
