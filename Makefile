# make demo: install, then ingest, mine, train and evaluate on real photographs.   make test: install, then run all tests.
# make check: lint, formatting and types.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# faiss comes as faiss-cpu or faiss-gpu, of which exactly one may be installed
FAISS := $(shell command -v nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)

.PHONY: demo test check clean
demo: $(VENV)/installed
	$(BIN)/python cli.py demo demo

test: $(VENV)/installed
	$(BIN)/python -m pytest

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hardmine needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[$(FAISS),demo,test]'
	touch $@

clean:
	rm -rf $(VENV) demo
