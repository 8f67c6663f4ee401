# make demo   the main job on real text, from a bare machine: see README.md
# make test   everything the tests need, then style, types, shell scripts and all tests
# make test-long   further cases of them, ten minutes: all layouts, kills, hosts, BERT-large
# make check  style, types and shell scripts alone
# make format mend style
# make clean  remove what the demo has made (not the environment)

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Further arguments to pip, for example a local index of wheels.
PIP_ARGS ?=
# Further arguments to pytest, for example PYTEST_ARGS="-k lamb".
PYTEST_ARGS ?=
# Tests at a time; many start two or more processes of their own.
TEST_JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-long check format clean

help:
	@sed -n 's/^# make /make /p' Makefile

demo: $(VENV)/.installed-demo
	@BIN="$(abspath $(BIN))" bash launchers/demo.sh

test: check
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal $(PYTEST_ARGS)

test-long: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m long -n $(TEST_JOBS) --dist worksteal $(PYTEST_ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/shellcheck launchers/*.sh launchers/slurm.sbatch tests/gpu/check.sh .ci/run

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf runs/demo data/demo

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV) || $(PYTHON) -m virtualenv $(VENV) || { \
	  rm -rf $(VENV); \
	  echo "No virtual environment could be made with $(PYTHON)." >&2; \
	  echo "On Debian and Ubuntu: apt-get install python3-venv. Or name another one: make PYTHON=python3.11 ..." >&2; \
	  exit 1; }

$(VENV)/.installed-%: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing into $(VENV) (about a minute, longer where packages must be downloaded)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[$*]'
	@touch $@
