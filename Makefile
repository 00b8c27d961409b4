# BENCH holds further options of a comparison, e.g. BENCH='--workloads mixed-128 --rounds 1'.
# Every target makes .venv itself: a bare Debian with python3 (3.11 or newer) and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := audio engines pipelines serving jobs tests benchmarks examples

.PHONY: demo test test-all check bench-llm bench-whisper wheel format clean

demo: $(VENV)/.installed
	$(BIN)/headrace demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -m "not gpu and not network"

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_packaging.py

bench-llm: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/compare.py llm --output build/bench-llm $(BENCH)

bench-whisper: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/compare.py whisper --table $(TABLE) --output build/bench-whisper $(BENCH)

wheel: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m build --wheel --outdir dist

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# Not after .installed: each installation builds the native kernels, which takes minutes.
$(VENV)/.installed-dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) build dist *.egg-info
