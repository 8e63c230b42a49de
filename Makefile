# The first target to run after a clone may be any of these: each makes .venv
# when it is missing. See CONTRIBUTING.md.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp-installed

# Plans for GPUs are compiled without one; a GPU, if any, is left alone.
export JAX_PLATFORMS ?= cpu
export PYTHON
export GPU_TARGETS

.DEFAULT_GOAL := help
.PHONY: help venv test lint format demo bench proto clean

help:
	@echo "make demo    plan a few steps and show what they save"
	@echo "make test    lint, check types, run the tests"
	@echo "make lint    lint and check types only"
	@echo "make format  format the code and fix what ruff can fix"
	@echo "make bench   list the benchmarks and how to run them"
	@echo "make proto   generate hlo_pb2.py from hlo.proto again"
	@echo "make venv    make .venv with everything the above need"
	@echo "make clean   remove .venv and the caches"
	@echo
	@echo "PYTHON=...     the Python (3.12 or newer) to make .venv with"
	@echo "GPU_TARGETS=0  do without JAX's CUDA plugin (plans for GPUs)"

$(STAMP): pyproject.toml scripts/make_venv scripts/find_python
	@scripts/make_venv $(VENV)
	@touch $@

venv: $(STAMP)

demo: $(STAMP)
	@$(BIN)/python -m jaxmem demo

# The tests run even if lint fails, and their summary comes last.
test: $(STAMP)
	@status=0; \
	$(MAKE) --no-print-directory lint || { status=$$?; echo "lint failed"; }; \
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile -rs || status=$$?; \
	exit $$status

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@if $(BIN)/pyright --version >/dev/null 2>&1; then \
	  echo "$(BIN)/pyright"; \
	  $(BIN)/pyright --pythonpath $(BIN)/python; \
	else \
	  echo "pyright skipped: it could not start (it needs Node)"; \
	fi

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	@echo "Benchmarks (each takes --help; one JSON row per case):"
	@for file in benchmarks/*_benchmark.py; do \
	  [ -e "$$file" ] || continue; \
	  name=$$(basename "$$file" .py); \
	  echo "  $(BIN)/python -m benchmarks.$$name"; \
	done

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
