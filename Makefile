# PYTHON is the interpreter that makes the environment, LOCK the set of pins: cpu or cuda.
PYTHON ?= python3
LOCK ?= cpu

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-$(LOCK)
# torchrec asks for "fbgemm-gpu", on an index the CUDA build: the stub stands in for it on a CPU.
STUB := $(if $(filter cpu,$(LOCK)),./requirements/fbgemm-gpu-stub)

.PHONY: venv test lint gate bench

venv: $(INSTALLED)

$(INSTALLED): requirements/$(LOCK).txt requirements/dev.txt requirements/fbgemm-gpu-stub/pyproject.toml pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements/$(LOCK).txt -r requirements/dev.txt $(STUB) -e .
	$(BIN)/python -m pip check --disable-pip-version-check
	touch $@

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two tests at a time, and then those that compare durations, alone.
test: lint
	$(BIN)/pytest -n 2 -m "not timed"
	$(BIN)/pytest -m timed

# Counters of a step against the committed reference: no times, the same on every machine.
gate: venv
	$(BIN)/nestpipe regress --against results/reference/ci.json

# The first comparison, nothing modelled: a lookup-bound workload, then one that dense computation dominates.
# Then the paper's Table II on an emulated cluster, with few steps.
bench: venv
	$(BIN)/nestpipe run torchrec torchrec-sparse-dist 2d-sp uniemb dbp nestpipe nestpipe-chosen \
		--workload synthetic --workers 2 --steps 60 --check exact
	$(BIN)/nestpipe data fetch ml-100k
	$(BIN)/nestpipe run torchrec torchrec-sparse-dist nestpipe nestpipe-chosen \
		--workload movielens --workers 2 --steps 21
	$(BIN)/nestpipe reproduce table2 --evidence emulated --steps 6
