# Two commands do everything on a machine with python3, pip and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test bench lint clean

demo: $(VENV)/demo.stamp
	$(BIN)/python examples/lpai_wake_word.py
	@echo
	$(BIN)/python examples/wake_word.py

test: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tests/zoo.py fetch
	$(BIN)/python -m pytest -q -n auto --dist loadfile

bench: $(VENV)/bench.stamp
	$(BIN)/python tests/zoo.py fetch
	$(BIN)/python bench/models.py
	$(BIN)/python bench/allocations.py
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/plans.py
	$(BIN)/python bench/planner.py
	$(BIN)/python bench/lpai.py
	$(BIN)/python bench/htp.py

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy

# A stamp says that an extra is installed for the present pyproject.toml.
$(VENV)/%.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) .models .cache build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
