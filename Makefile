# Checks weft and shows it at work. Each target first makes what it needs: a
# fresh machine has to bring only make and Python 3.11 or newer.
#
#   make test     lint and format, then the tests with the type checker beside them. The expensive sweeps (ops x dtypes x shapes on
#                 CPU and GPU kernels, networks of the zoo) are sampled: at least one case of every op, dtype and mode, the rest
#                 by WEFT_TEST_SEED, which the tests' last line prints. Tests above the compiler compile without LLVM's optimizations,
#                 run on one thread, and find the compiled code of earlier runs in ~/.cache/weft-tests
#   make test-all    the same with every case of every sweep, and the studio's accounts on PostgreSQL where it is installed
#   make test FAST=1    for the inner loop: tests/sampling.py lists the slow files that are left out, and all compiled code is kept
#   make check    lint, format and types, without the tests
#   make demo     trains a network on the digits and writes its report
#   make studio   trains three networks on the digits and opens the studio on them
#   make studio-load    measures the studio: pages with 1,000 runs, 100 open pages, 300 clients at once
#   make bench    measures weft against PyTorch, JAX and ONNX Runtime, side by side
#   make bench-zoo    every network of the zoo, and ten random ones, against PyTorch: training step and inference, with the kernels that
#                 lose most time. BENCH_OPTIONS="--only resnet --threads 1 2"; on a GPU: python benchmarks/zoo.py --device cuda
#   make fuzz     random programs and networks against float64 for SECONDS (60), from SEED on; fails on a finding
#   make docs     builds the documentation site into build/site; dead links fail
#   make wheel    builds a wheel into dist, installs it into an empty environment and tries it there
#   make audit    checks the packages that weft uses against known advisories; needs a network
#   make format   formats the code and applies safe fixes of the linter
#   make clean    removes all that make and the tools left behind
#
# On a machine with an NVIDIA GPU:
#
#   make gpu-test    all tests that need a GPU; fails where there is none
#   make gpu-bench   measures weft against PyTorch (eager, compiled, CUDA graph) and JAX
#
# Both make their environment as the others do, or take the packages of a Python
# and of a folder that are there already: on a machine without network, carry a
# folder made by scripts/gpu_wheels.py, and say
# make gpu-test GPU_PYTHON=python3 GPU_SITE=folder/site
#
# Another Python: make test PYTHON=python3.13
#
# Kept to what GNU make 3.81 knows, the version that macOS ships.

PYTHON ?= python3
VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
# Python compiles a package's files when they are first imported; pip would compile all of them, and most are never used.
# The pip that comes with Python 3.11 takes half a minute longer than newer ones to choose the versions, so a newer one is taken first.
PIP_INSTALL := $(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check --no-compile

# Tests start many Python processes: without bytecode files, each of them would compile weft's sources again.
unexport PYTHONDONTWRITEBYTECODE

# A stamp is a file whose age says when a step of the set-up was last done.
VENV_MADE := $(VENV)/.made
WEFT_INSTALLED := $(VENV)/.weft-installed
TEST_TOOLS_INSTALLED := $(VENV)/.test-tools-installed
STUDIO_INSTALLED := $(VENV)/.studio-installed

# The Python of the GPU targets. One that is named is taken as it is; with a
# folder of packages (GPU_SITE), they come before its own.
GPU_VENV := .venv-gpu
GPU_INSTALLED := $(GPU_VENV)/.installed
ifdef GPU_PYTHON
GPU_NEEDS :=
else
GPU_PYTHON := $(GPU_VENV)/bin/python
GPU_NEEDS := $(GPU_INSTALLED)
endif
GPU_PATH = PYTHONPATH="$(CURDIR)$(if $(GPU_SITE),:$(abspath $(GPU_SITE)))$(if $(PYTHONPATH),:$(PYTHONPATH))"
GPU_WORKERS ?= 8

DOCS_VENV := .venv-docs
DOCS_INSTALLED := $(DOCS_VENV)/.installed
WHEEL_VENV := build/wheel-venv
AUDIT_VENV := .venv-audit

BENCH_VENV := .venv-bench
BENCH_INSTALLED := $(BENCH_VENV)/.installed

# The environment is of use only where, and with the Python, it was made for:
# it breaks when the checkout moves or when that Python goes.
VENV_MADE_FOR := $(PYTHON) in $(CURDIR)
VENV_WORKS := $(shell test "`cat $(VENV_MADE) 2>/dev/null`" = "$(VENV_MADE_FOR)" \
	&& $(VENV_PYTHON) -c "" 2>/dev/null && echo yes)

# One step at a time, also under `make -j`: the targets share one environment.
.NOTPARALLEL:
.PHONY: test test-all lint check demo studio studio-load bench bench-zoo fuzz gpu-test gpu-bench docs wheel audit format clean always

# The type checker uses one core for half a minute: it runs beside the tests, and the target fails when either fails. The tests run
# on all cores; a process that is done takes tests from another.
TYPES_LOG := build/mypy.log
define run_tests
@mkdir -p $(dir $(TYPES_LOG))
@$(VENV_PYTHON) -m mypy > $(TYPES_LOG) 2>&1 & types=$$!; trap "kill $$types 2>/dev/null" INT TERM; \
	$(VENV_PYTHON) -m pytest -n auto --dist worksteal; tests=$$?; \
	wait $$types; types=$$?; cat $(TYPES_LOG); exit $$((tests + types))
endef

test: export WEFT_TESTS := $(if $(FAST),fast,sample)
test test-all: lint
	$(run_tests)

test-all: export WEFT_TESTS := all

lint: $(TEST_TOOLS_INSTALLED)
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .

check: lint
	$(VENV_PYTHON) -m mypy

demo: $(WEFT_INSTALLED)
	$(VENV_PYTHON) -m weft train digits model=lenet
	@echo "See it in the browser: make studio. Use the command weft in this shell: . $(VENV)/bin/activate"

studio: $(STUDIO_INSTALLED)
	$(VENV_PYTHON) scripts/studio_demo.py build/studio/runs

studio-load: $(TEST_TOOLS_INSTALLED)
	$(VENV_PYTHON) benchmarks/studio_load.py

# The peers live in an environment of their own: weft itself never needs them.
bench: $(BENCH_INSTALLED)
	$(BENCH_VENV)/bin/python benchmarks/cpu.py $(BENCH_OPTIONS)

bench-zoo: $(BENCH_INSTALLED)
	$(BENCH_VENV)/bin/python benchmarks/zoo.py $(BENCH_OPTIONS)

# The time is shared out evenly. Another device: FUZZ_OPTIONS="--device cuda"; one kind only: FUZZ_KINDS=networks.
SECONDS ?= 60
SEED ?= $(shell date +%s)
FUZZ_KINDS ?= programs networks files

fuzz: $(TEST_TOOLS_INSTALLED)
	@found=0; each=$$(($(SECONDS) / $(words $(FUZZ_KINDS)))); for kind in $(FUZZ_KINDS); do \
		if [ $$kind = files ]; then $(VENV_PYTHON) tests/mutate_files.py --seed $(SEED) --seconds $$each || found=1; \
		else $(VENV_PYTHON) -m weft.testing.fuzz --kind $$kind --seed $(SEED) --seconds $$each $(FUZZ_OPTIONS) || found=1; fi; \
	done; exit $$found

# Tests that measure or fill the GPU's memory come last, with nothing beside them. Where pytest-benchmark is installed, it warns of
# several processes, and warnings are errors.
gpu-test: $(GPU_NEEDS)
	$(GPU_PATH) WEFT_GPU_TESTS_DEVICE=cuda $(GPU_PYTHON) -m pytest tests/gpu -p no:benchmark -m "not alone" -n $(GPU_WORKERS) --dist worksteal $(GPU_TEST_OPTIONS)
	$(GPU_PATH) WEFT_GPU_TESTS_DEVICE=cuda $(GPU_PYTHON) -m pytest tests/gpu -p no:benchmark -m alone $(GPU_TEST_OPTIONS)

gpu-bench: $(GPU_NEEDS)
	$(GPU_PATH) $(GPU_PYTHON) benchmarks/gpu.py $(BENCH_OPTIONS)

docs: $(DOCS_INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict
	@echo "Open build/site/index.html"

# Tried outside the checkout, so that the installed package is imported and not the sources.
wheel: $(VENV_MADE)
	rm -rf dist $(WHEEL_VENV)
	$(VENV_PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd $(WHEEL_VENV) && PYTHONPATH= bin/python "$(CURDIR)/scripts/smoke_test.py"

# The auditor has an environment of its own, so that its packages are not among those that it judges.
audit: $(TEST_TOOLS_INSTALLED)
	@$(PYTHON) -m venv $(AUDIT_VENV)
	@$(AUDIT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 pip-audit 2>/dev/null || { \
		echo "make audit needs a network: pip-audit could not be installed, and nothing was checked." >&2; exit 1; }
	$(AUDIT_VENV)/bin/python scripts/audit.py $(AUDIT_VENV)/bin/pip-audit $(VENV_PYTHON)

format: $(TEST_TOOLS_INSTALLED)
	$(VENV_PYTHON) -m ruff check --fix .
	$(VENV_PYTHON) -m ruff format .

clean:
	rm -rf $(VENV) $(AUDIT_VENV) $(BENCH_VENV) $(GPU_VENV) $(DOCS_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/weft-tests"
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
	@$(PIP_INSTALL) "pip>=25" || echo "Going on with the pip of $(PYTHON): installing takes longer." >&2
	@echo "$(VENV_MADE_FOR)" > $@

$(WEFT_INSTALLED): $(VENV_MADE) pyproject.toml
	@echo "Installing weft ..."
	@$(PIP_INSTALL) -e .
	@touch $@

$(STUDIO_INSTALLED): $(VENV_MADE) pyproject.toml
	@echo "Installing weft and its studio ..."
	@$(PIP_INSTALL) -e ".[studio]"
	@touch $@ $(WEFT_INSTALLED)

# Installs weft too, so that `make demo` finds nothing left to do.
$(TEST_TOOLS_INSTALLED): $(VENV_MADE) pyproject.toml
	@echo "Installing weft and its test tools ..."
	@$(PIP_INSTALL) -e ".[test]"
	@touch $@ $(WEFT_INSTALLED) $(STUDIO_INSTALLED)

$(BENCH_INSTALLED): benchmarks/requirements.txt pyproject.toml
	@echo "Making the environment of the benchmark, with PyTorch, JAX and ONNX Runtime ..."
	@$(PYTHON) -m venv $(BENCH_VENV)
	@$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt -e .
	@touch $@

$(DOCS_INSTALLED): pyproject.toml
	@echo "Making the environment of the documentation ..."
	@$(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	@touch $@

$(GPU_INSTALLED): pyproject.toml
	@echo "Making the environment for GPUs, with PyTorch and JAX ..."
	@$(PYTHON) -m venv $(GPU_VENV)
	@$(GPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[cuda,test]" torch "jax[cuda13]"
	@touch $@
