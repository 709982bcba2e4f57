# `make demo` and `make test` set everything up on a fresh machine; the second time they are quick.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Compiled programs are kept between runs, and leave with the rest.
export NATGFN_CACHE ?= $(CURDIR)/.venv/jax-cache

.PHONY: demo test test-slow lint types unit clean

demo: $(READY)
	$(BIN)/natgfn demo --out demo

test: lint types unit

test-slow: $(READY)
	$(BIN)/pytest -m slow

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/basedpyright

unit: $(READY)
	$(BIN)/pytest -m "not slow"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $(READY)

clean:
	rm -rf .venv demo runs
