# Each target sets up what it needs: the environment, the package with its compiled kernel,
# and the system packages that are missing.
PYTHON ?= $(shell .ci/find-python)
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml setup.py $(wildcard src/millstream/protocol/*kernel.py src/millstream/protocol/*kernel.pxd)

# A broker starts in half the time when Python may keep its bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test search check bench simulate chaos soak system format clean

setup: $(VENV)/.ready

$(VENV)/.ready: $(SOURCES)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Millstream needs Python 3.11 or newer; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,check,bench]'
	touch $@

system:
	@.ci/system-packages

demo: setup
	@.ci/system-packages java
	$(BIN)/python examples/demo.py

# Two files at a time, and the simulations beside them in what time they leave.
JOBS ?= 3
test: setup system
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

# The tests of properties with new examples each time; `make test` has the same ones always.
search: setup
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile -m hypothesis --hypothesis-profile random $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup system
	$(BIN)/python -m bench $(ARGS)

SEEDS ?= 1000
simulate: setup
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

SECONDS ?= 60
chaos: setup system
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(ARGS)

# The tests that can run for longer, as long as is worth while. One after another: some of them measure.
SOAK_TESTS := tests/behaviour/test_hostile_frames.py tests/behaviour/test_connection_limits.py \
	tests/behaviour/test_coordinator_load.py tests/coordinator/transactions/test_state_machine.py \
	tests/compat/test_transactions_bank.py tests/crash/test_kill.py tests/crash/test_exactly_once.py \
	tests/streams/test_sink_exactly_once.py
soak: export MILLSTREAM_FUZZ_FRAMES ?= 100000
soak: export MILLSTREAM_IDLE_CONNECTIONS ?= 5000
soak: export MILLSTREAM_BUSY_CONNECTIONS ?= 200
soak: export MILLSTREAM_LOAD_COMMITS ?= 1000000
soak: export MILLSTREAM_TXN_EXAMPLES ?= 2000
soak: export MILLSTREAM_BANK_SECONDS ?= 60
soak: export MILLSTREAM_CRASH_ROUNDS ?= 50
soak: export MILLSTREAM_EOS_ROUNDS ?= 30
soak: export MILLSTREAM_SPARK_ROUNDS ?= 20
soak: setup system
	$(BIN)/python -m pytest --timeout 3600 $(or $(ARGS),$(SOAK_TESTS))

clean:
	rm -rf $(VENV) build src/*.egg-info src/millstream/protocol/*kernel.*.so src/millstream/protocol/*kernel.c
