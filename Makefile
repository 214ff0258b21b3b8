# Two commands do everything on a fresh machine: `make plan` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: plan test test-frameworks check bench docs guidelines clean

# The stamp is newer than pyproject.toml exactly when what is installed is current.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("rlplan needs Python 3.11 to 3.13; found %d.%d. Set PYTHON=..." % sys.version_info[:2] if not (3, 11) <= sys.version_info[:2] < (3, 14) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

plan: $(VENV)/.installed
	$(BIN)/rlplan plan qwen3-32b --algorithm grpo --gpus 4x8xh100 --prompt 1024 --response 8192 --prompts 256 --group 16 --framework verl

test: check
	$(BIN)/python -m pytest -n auto --dist worksteal tests

# Exports through the frameworks' own configuration code; each is skipped with a message where it is not installed.
test-frameworks: $(VENV)/.installed
	$(BIN)/python -m tests.adapters.verl_check
	$(BIN)/python -m tests.adapters.nemo_rl_check
	$(BIN)/python -m tests.adapters.openrlhf_check
	$(BIN)/python -m tests.adapters.areal_check
	$(BIN)/python -m tests.adapters.slime_check

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks

# Pages that follow from code, and the output of commands in the others and in examples/.
docs: $(VENV)/.installed
	$(BIN)/python -m docs.generation

# Plans the grid behind docs/guidelines.md again (some 900 plans, minutes on two cores); then `make docs`.
guidelines: $(VENV)/.installed
	$(BIN)/python -m benchmarks.guidelines --workers 2

clean:
	rm -rf $(VENV) build dist *.egg-info
