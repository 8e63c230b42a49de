# The first target to run after a clone may be any of these: each makes .venv
# when it is missing. See CONTRIBUTING.md.

VENV := .venv
BIN := $(VENV)/bin
# Another JAX_VERSION is another stamp, so that the version is installed.
STAMP := $(VENV)/.stamp-installed$(addprefix -jax-,$(JAX_VERSION))

# Plans for GPUs are compiled without one; a GPU, if any, is left alone.
export JAX_PLATFORMS ?= cpu
export PYTHON
export GPU_TARGETS
export JAX_VERSION

.DEFAULT_GOAL := help
.PHONY: help venv test test-all lint lint-ruff lint-types lint-imports \
  lint-bazel format demo bench rehearse proto clean

help:
	@echo "make demo      plan a few steps and show what they save"
	@echo "make test      lint, check types, run all tests but the slow ones"
	@echo "make test-all  lint, check types, run all tests"
	@echo "make lint      lint and check types only"
	@echo "make format    format the code and fix what ruff can fix"
	@echo "make bench     list the benchmarks and how to run them"
	@echo "make rehearse  try the benchmarks for a GPU on the CPU"
	@echo "make proto     generate hlo_pb2.py from hlo.proto again"
	@echo "make venv      make .venv with everything the above need"
	@echo "make clean     remove .venv and the caches"
	@echo
	@echo "PYTHON=...       the Python (3.12 or newer) to make .venv with"
	@echo "JAX_VERSION=...  the jax to put in .venv, such as 0.11.2, or newest,"
	@echo "                 which may be newer than pyproject.toml allows"
	@echo "GPU_TARGETS=0    do without JAX's CUDA plugin (plans for GPUs)"

$(STAMP): pyproject.toml scripts/make_venv scripts/find_python
	@rm -f $(VENV)/.stamp-installed*
	@scripts/make_venv $(VENV)
	@touch $@

venv: $(STAMP)

demo: $(STAMP)
	@$(BIN)/python -m jaxmem demo

# The tests run even if lint fails, and their summary comes last.
test: SELECTION := -m "not slow"
test-all: SELECTION :=
test test-all: $(STAMP)
	@status=0; \
	$(MAKE) --no-print-directory lint || { status=$$?; echo "lint failed"; }; \
	$(BIN)/python -m pytest $(SELECTION) -n auto --maxprocesses 8 \
	  --dist loadfile -rs || status=$$?; \
	exit $$status

lint: lint-ruff lint-types lint-imports lint-bazel

lint-ruff: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types: $(STAMP)
	@if $(BIN)/pyright --version >/dev/null 2>&1; then \
	  echo "$(BIN)/pyright"; \
	  $(BIN)/pyright --pythonpath $(BIN)/python; \
	else \
	  echo "pyright skipped: it could not start (it needs Node)"; \
	fi

# Which package may import which: [tool.importlinter] of pyproject.toml.
lint-imports: $(STAMP)
	PYTHONPATH=.:hlo $(BIN)/lint-imports

# Where scripts/make_venv puts buildifier if the PATH has none.
export PATH := $(PATH):$(abspath $(VENV))/buildifier/node_modules/.bin
BAZEL_FILES = $(shell find . -path "./.*" -prune -o \
  \( -name BUILD -o -name "*.bazel" \) -print)

lint-bazel: $(STAMP)
	@if buildifier --version >/dev/null 2>&1; then \
	  echo "buildifier"; \
	  buildifier -mode=check -lint=warn $(BAZEL_FILES); \
	else \
	  echo "buildifier skipped: it could not start (it comes from npm)"; \
	fi

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@if buildifier --version >/dev/null 2>&1; then \
	  echo "buildifier"; \
	  buildifier $(BAZEL_FILES); \
	fi

bench: $(STAMP)
	@echo "Benchmarks (each takes --help; one JSON row per case):"
	@for file in benchmarks/*_benchmark.py; do \
	  [ -e "$$file" ] || continue; \
	  name=$$(basename "$$file" .py); \
	  echo "  $(BIN)/python -m benchmarks.$$name"; \
	done

# What benchmarks/gpu_campaign.py would do on a GPU; see docs/gpu.md.
rehearse: $(STAMP)
	@folder=$$(mktemp -d) && \
	PYTHONPATH=.:hlo $(BIN)/python -m benchmarks.gpu_campaign --rehearse \
	  --out="$$folder" && \
	PYTHONPATH=.:hlo $(BIN)/python -m benchmarks.gpu_campaign \
	  --report="$$folder"

# Code made by protoc 5.29 runs with protobuf 5.29 to 6.x, hence with any that
# OR-Tools allows; newer compilers would refuse the older runtimes.
PROTO_VENV := $(VENV)/proto
PROTO_DIR := hlo/jaxmem_hlo/proto
proto: $(STAMP)
	@test -x $(PROTO_VENV)/bin/python || $(BIN)/python -m venv $(PROTO_VENV)
	@$(PROTO_VENV)/bin/python -m pip install --quiet \
	  --disable-pip-version-check "grpcio-tools==1.71.*"
	$(PROTO_VENV)/bin/python -m grpc_tools.protoc -I $(PROTO_DIR) \
	  --python_out=$(PROTO_DIR) --pyi_out=$(PROTO_DIR) $(PROTO_DIR)/*.proto
	$(BIN)/ruff check --quiet --fix-only --unsafe-fixes $(PROTO_DIR)
	$(BIN)/ruff format --quiet $(PROTO_DIR)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
