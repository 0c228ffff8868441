# Checks weft and shows it at work. Each target first makes what it needs: a
# fresh machine has to bring only make and Python 3.11 or newer.
#
#   make test     lint, format, types, then all tests; stops at the first failure
#   make check    the same without the tests
#   make demo     trains a network on the digits and writes its report
#   make bench    measures weft against PyTorch, JAX and ONNX Runtime, side by side
#   make format   rewrites the code in the house format
#   make clean    removes all that make and the tools left behind
#
# Another Python: make test PYTHON=python3.13
#
# Kept to what GNU make 3.81 knows, the version that macOS ships.

PYTHON ?= python3
VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
PIP_INSTALL := $(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check

# A stamp is a file whose age says when a step of the set-up was last done.
VENV_MADE := $(VENV)/.made
WEFT_INSTALLED := $(VENV)/.weft-installed
TEST_TOOLS_INSTALLED := $(VENV)/.test-tools-installed

BENCH_VENV := .venv-bench
BENCH_INSTALLED := $(BENCH_VENV)/.installed

# The environment is of use only where, and with the Python, it was made for:
# it breaks when the checkout moves or when that Python goes.
VENV_MADE_FOR := $(PYTHON) in $(CURDIR)
VENV_WORKS := $(shell test "`cat $(VENV_MADE) 2>/dev/null`" = "$(VENV_MADE_FOR)" \
	&& $(VENV_PYTHON) -c "" 2>/dev/null && echo yes)

# One step at a time, also under `make -j`: the targets share one environment.
.NOTPARALLEL:
.PHONY: test check demo bench format clean always

# On all cores; a process that is done takes tests from another.
test: check
	$(VENV_PYTHON) -m pytest -n auto --dist worksteal

check: $(TEST_TOOLS_INSTALLED)
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m mypy

demo: $(WEFT_INSTALLED)
	$(VENV_PYTHON) -m weft train digits model=lenet

# The peers live in an environment of their own: weft itself never needs them.
bench: $(BENCH_INSTALLED)
	$(BENCH_VENV)/bin/python benchmarks/cpu.py $(BENCH_OPTIONS)

format: $(TEST_TOOLS_INSTALLED)
	$(VENV_PYTHON) -m ruff check --fix .
	$(VENV_PYTHON) -m ruff format .

clean:
	rm -rf $(VENV) $(BENCH_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

ifneq ($(VENV_WORKS),yes)
$(VENV_MADE): always
endif

$(VENV_MADE):
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || { \
		echo "weft needs Python 3.11 or newer, but '$(PYTHON)' is: `$(PYTHON) --version 2>&1`" >&2; \
		echo "Name another one, for example: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; \
		exit 1; }
	@echo "Making the virtual environment $(VENV) ..."
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@echo "$(VENV_MADE_FOR)" > $@

$(WEFT_INSTALLED): $(VENV_MADE) pyproject.toml
	@echo "Installing weft ..."
	@$(PIP_INSTALL) -e .
	@touch $@

# Installs weft too, so that `make demo` finds nothing left to do.
$(TEST_TOOLS_INSTALLED): $(VENV_MADE) pyproject.toml
	@echo "Installing weft and its test tools ..."
	@$(PIP_INSTALL) -e ".[test]"
	@touch $@ $(WEFT_INSTALLED)

$(BENCH_INSTALLED): benchmarks/requirements.txt pyproject.toml
	@echo "Making the environment of the benchmark, with PyTorch, JAX and ONNX Runtime ..."
	@$(PYTHON) -m venv $(BENCH_VENV)
	@$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt -e .
	@touch $@
