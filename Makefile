# The only entry point: what CI runs is what you run. `make help` explains the targets.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
JOBS ?= $(shell nproc)
PROMPT ?= What is the capital of France?
VENV := .venv
BIN := $(VENV)/bin
STAMPS := build/stamps
# One build folder serves the Python package, the tests and the benchmarks.
PLAIN := build/python

export PYTHON
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# Objects are shared between build folders and checkouts: the folder's own path does not count.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

NATIVE_SOURCES := CMakeLists.txt $(shell find native -type f \
  \( -name '*.cpp' -o -name '*.h' -o -name 'CMakeLists.txt' -o -name '*.cmake' \) \
  -not -path 'native/tests/*' -not -path 'native/bench/*' -not -path 'native/fuzz/*')
CXX_FILES = $(shell git ls-files 'native/*.cpp' 'native/*.h')
# Test, benchmark and sanitizer builds are configured by folder name.
CTEST := ctest --no-tests=error --output-on-failure -j $(JOBS) --test-dir

##@ Use

.PHONY: help
help: ## Explain the targets
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z][a-z-]*:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nVariables: PYTHON=%s  JOBS=%s  PROMPT="%s"\n' '$(PYTHON)' '$(JOBS)' '$(PROMPT)'

.PHONY: demo
demo: build ## Start four services on loopback, answer PROMPT, say where the time went
	@tools/demo.sh $(BIN) "$(PROMPT)"

.PHONY: setup
setup: build ## Everything a working copy needs: system packages (as root), .venv, native build
	@echo "ready: make demo, make test, or $(BIN)/crossdock --help"

.PHONY: build
build: $(STAMPS)/native ## Build the engine and the native module into the virtual environment

##@ Develop

.PHONY: format
format: $(STAMPS)/dev ## Rewrite the sources as the formatters want them
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format -q .
	$(BIN)/clang-format -i $(CXX_FILES)

.PHONY: protos
protos: $(STAMPS)/dev ## Generate crossdock/api from protos/
	tools/protos.sh $(BIN)

.PHONY: check
check: $(STAMPS)/dev ## Lint, formats, types, import direction, generated code, sizes and names
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	tools/protos.sh $(BIN) --check
	$(BIN)/python -m pytest -q tests/tidy

.PHONY: test
test: test-native test-python ## Tests in C++ and Python (less than 10 minutes)

.PHONY: test-native
test-native: build ## The C++ tests, without sanitizers
	cmake -S . -B $(PLAIN) -DCROSSDOCK_TESTS=ON
	cmake --build $(PLAIN)
	$(CTEST) $(PLAIN)/native
	@grep '^model check:' $(PLAIN)/native/Testing/Temporary/LastTest.log

.PHONY: model-check
model-check: build ## Handoffs in every interleaving of small worlds, and wrong decisions noticed
	cmake -S . -B $(PLAIN) -DCROSSDOCK_TESTS=ON
	cmake --build $(PLAIN) --target handoff_world_test
	$(PLAIN)/native/handoff_world_test --gtest_brief=1

.PHONY: test-python
test-python: sim-world $(STAMPS)/oracle ## The Python tests: unit, integration, end to end
	$(BIN)/crossdock model fetch
	$(BIN)/python -m pytest

.PHONY: sim-world
sim-world: build
	cmake -S . -B $(PLAIN) -DCROSSDOCK_TESTS=ON
	cmake --build $(PLAIN) --target crossdock_sim

.PHONY: sim
sim: sim-world ## The fleet on virtual time: 200 fixed and 200 fresh seeds, or SEED=n with its trace
	$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED))

# What of it runs: parts of names, such as CHECKS="doctor handoff".
.PHONY: roce-test
roce-test: build ## Real RoCEv2 (Soft-RoCE) in an emulated guest: doctor, transfers, a handoff
	cmake -S . -B $(PLAIN) -DCROSSDOCK_TESTS=ON
	cmake --build $(PLAIN) --target transfer_ucx_transport_test transfer_processes_test
	$(BIN)/python -m tools.roce $(CHECKS)

# Python is not built with the sanitizer, so that whoever loads a module that is has to begin with
# its libraries. Leaks are looked for in the C++ tests alone: Python has its own.
.PHONY: test-asan
test-asan: build ## C++ tests and simulation seeds under address and undefined behaviour sanitizers
	cmake -S . -B build/asan -G Ninja -DCROSSDOCK_TESTS=ON -DCROSSDOCK_BINDINGS=ON \
	  -DCROSSDOCK_SANITIZE=address,undefined -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	cmake --build build/asan
	LSAN_OPTIONS=suppressions=$(CURDIR)/tools/lsan.supp:print_suppressions=0 \
	  $(CTEST) build/asan/native
	CROSSDOCK_SIM=build/asan ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libstdc++.so)" \
	  $(BIN)/python -m pytest -q tests/sim/test_seeds.py tests/sim/test_alarms.py

# UCX hooks madvise, which the C library calls as a thread ends: after the sanitizer has taken the
# thread apart, so that the hook's lock crashes it. Without RDMA nothing needs the hooks.
.PHONY: test-tsan
test-tsan: $(STAMPS)/dev ## The C++ tests under the thread sanitizer
	cmake -S . -B build/tsan -G Ninja -DCROSSDOCK_TESTS=ON -DCROSSDOCK_SANITIZE=thread
	cmake --build build/tsan
	UCX_MEM_MMAP_HOOK_MODE=none TSAN_OPTIONS=suppressions=$(CURDIR)/tools/tsan.supp:halt_on_error=1 \
	  $(CTEST) build/tsan/native

.PHONY: fault-test
fault-test: build ## Kills, stops, cancels: every state, then 1,000 handoffs over each transport
	$(BIN)/python -m pytest -q tests/faults

.PHONY: bench
bench: build ## Measure; print each figure beside its limit; write bench/out/
	cmake -S . -B $(PLAIN) -DCROSSDOCK_BENCH=ON
	cmake --build $(PLAIN)
	$(BIN)/crossdock model fetch
	$(BIN)/python -m bench --programs $(PLAIN)/native

.PHONY: bench-engine
bench-engine: build ## The engine beside llama.cpp (LLAMA_BIN) and vLLM (VLLM_PYTHON), 12 minutes
	cmake -S . -B $(PLAIN) -DCROSSDOCK_BENCH=ON
	cmake --build $(PLAIN)
	$(BIN)/crossdock model fetch
	$(BIN)/python -m bench.engine_peers --programs $(PLAIN)/native $(BENCH_ARGS)

.PHONY: bench-handoff
bench-handoff: build ## Moving KV beside memcpy, UCX, NIXL (NIXL_PYTHON), Mooncake (MOONCAKE_PYTHON)
	cmake -S . -B $(PLAIN) -DCROSSDOCK_BENCH=ON
	cmake --build $(PLAIN)
	$(BIN)/python -m bench.handoff_peers --programs $(PLAIN)/native $(BENCH_ARGS)

.PHONY: clean
clean: ## Remove what was built; the virtual environment and the models stay
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(STAMPS)/system: tools/system_packages.sh
	tools/system_packages.sh
	@mkdir -p $(@D) && touch $@

$(STAMPS)/dev: pyproject.toml tools/python_packages.sh | $(STAMPS)/system
	tools/python_packages.sh $(VENV) dev convert
	@mkdir -p $(@D) && touch $@

$(STAMPS)/oracle: $(STAMPS)/dev
	tools/python_packages.sh $(VENV) oracle
	@mkdir -p $(@D) && touch $@

$(STAMPS)/native: $(STAMPS)/dev $(NATIVE_SOURCES)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation \
	  -e . -C build-dir=$(PLAIN)
	@mkdir -p $(@D) && touch $@
