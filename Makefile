# `make demo` and `make test` set everything up on a fresh machine; the second time they are quick.
PYTHON ?= python3
BIN := .venv/bin
USABLE := .venv/.usable
READY := .venv/.ready
DOCS_READY := .venv/.docs-ready
# Compiled programs are kept between runs, and leave with the rest.
export NATGFN_CACHE ?= $(CURDIR)/.venv/jax-cache

.PHONY: demo test test-slow faults lint types unit docs notebooks release-check clean

demo: $(USABLE)
	$(BIN)/natgfn demo --out demo

test: lint types unit

test-slow: $(READY)
	$(BIN)/pytest -m slow

# Everything that can happen to a run over night, in minutes: FAULTS="--seed 1 --scale 0.1 --only kill".
faults: $(READY)
	$(BIN)/python -m tests.faults $(FAULTS)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/basedpyright

unit: $(READY)
	$(BIN)/pytest -m "not slow"

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebooks: $(DOCS_READY)
	$(BIN)/python docs/notebooks.py

# The wheel in an empty environment outside of the checkout, without any extra.
release-check: $(READY)
	rm -rf dist
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt build twine
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT \
	&& $(PYTHON) -m venv $$folder/venv \
	&& $$folder/venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl \
	&& cd $$folder && venv/bin/natgfn --version && venv/bin/natgfn demo

$(USABLE): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[plot,dag,report]'
	touch $(USABLE)

$(READY): $(USABLE)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $(READY)

$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $(DOCS_READY)

clean:
	rm -rf .venv demo runs site dist
