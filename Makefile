# The first target to run after a clone may be any of these: each makes .venv
# when it is missing. See CONTRIBUTING.md.

VENV := .venv
BIN := $(VENV)/bin
# Another JAX_VERSION is another stamp, so that the version is installed.
STAMP := $(VENV)/.stamp-installed$(addprefix -jax-,$(JAX_VERSION))

# The versions of jax that pyproject.toml allows, without the newest, which is in
# .venv.
OLDER_JAX := 0.11.2 0.12.0

# Plans for GPUs are compiled without one; a GPU, if any, is left alone.
export JAX_PLATFORMS ?= cpu
export PYTHON
export GPU_TARGETS
export JAX_VERSION

.DEFAULT_GOAL := help
.PHONY: help venv test test-all test-versions lint lint-ruff lint-types \
  lint-imports lint-bazel format demo docs dist bench canary conformance \
  rehearse proto clean \
  $(OLDER_JAX:%=test-jax-%)

help:
	@echo "make demo      plan a few steps and show what they save"
	@echo "make test      lint, check types, run all tests but the slow ones"
	@echo "make test-all  lint, check types, run all tests; then test-versions"
	@echo "make test-versions  tests of how steps reach jaxmem, on older jax;"
	@echo "               make test-jax-0.11.2 is one of them"
	@echo "make lint      lint and check types only"
	@echo "make format    format the code and fix what ruff can fix"
	@echo "make docs      build the documentation's site into site/"
	@echo "make dist      build the wheel and the sdist into dist/, and try them"
	@echo "make bench     list the benchmarks and how to run them"
	@echo "make canary    say in one line which of jax's internals moved"
	@echo "make conformance JAX_TESTS=path  JAX's own tests, with every compile"
	@echo "               planned, beside jax alone; path is a checkout of jax"
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

PYTEST := -m pytest -n auto --maxprocesses 8 --dist loadfile -rsfE

# Each part runs even if one before it fails; what failed comes last.
test: SELECTION := -m "not slow"
test-all: SELECTION :=
test-all: OTHERS := test-versions
test test-all: $(STAMP)
	@failed=; \
	$(MAKE) --no-print-directory lint || failed="$$failed lint"; \
	$(BIN)/python $(PYTEST) $(SELECTION) || failed="$$failed tests"; \
	for target in $(OTHERS); do \
	  $(MAKE) --no-print-directory "$$target" || failed="$$failed $$target"; \
	done; \
	[ -z "$$failed" ] || { echo "Failed:$$failed"; exit 1; }

# Older versions of jax, each in an environment of its own within .venv. What
# differs between versions is how steps reach jaxmem: jax's functions that jaxmem
# replaces, its caches, what XLA reports, and what scripts and libraries call.
# These are the tests of that, the slow ones too; all others run on .venv's jax.
DOOR_TESTS := $(addprefix tests/, \
  compiler entry runtime script versions/limited_jit_test.py \
  versions/scan_joined_test.py api_test.py cli_test.py faults_test.py \
  limit_test.py targets_test.py units_test.py planning/collector_test.py \
  report/plan_json_test.py jaxmem_hlo/compiler_hook_test.py \
  jaxmem_hlo/assignment)

test-versions: $(STAMP)
	@failed=; \
	for version in $(OLDER_JAX); do \
	  $(MAKE) --no-print-directory "test-jax-$$version" \
	    || failed="$$failed $$version"; \
	done; \
	[ -z "$$failed" ] || { echo "Failed on jax:$$failed"; exit 1; }

$(OLDER_JAX:%=test-jax-%): test-jax-%: $(VENV)/jax-%/.stamp-installed
	$(VENV)/jax-$*/bin/python $(PYTEST) $(DOOR_TESTS)

$(OLDER_JAX:%=$(VENV)/jax-%/.stamp-installed): \
  $(VENV)/jax-%/.stamp-installed: pyproject.toml scripts/make_venv \
  scripts/find_python
	@rm -f $@
	@JAX_VERSION=$* scripts/make_venv $(VENV)/jax-$* tests
	@touch $@

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

# What builds the site, and what builds the archives, beside all else.
EXTRAS := $(VENV)/.stamp-extras
$(EXTRAS): $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --editable ".[test,docs,dist]"
	@touch $@

# The notebooks are run, so that the site shows what they print.
docs: $(EXTRAS)
	NO_MKDOCS_2_WARNING=1 JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 PYTHONPATH=.:hlo \
	  $(BIN)/mkdocs build --strict --clean
	@echo "Open site/index.html."

dist: $(EXTRAS)
	scripts/make_dist $(VENV)

bench: $(STAMP)
	@echo "Benchmarks (each takes --help; one JSON row per case):"
	@for file in benchmarks/*_benchmark.py; do \
	  [ -e "$$file" ] || continue; \
	  name=$$(basename "$$file" .py); \
	  echo "  $(BIN)/python -m benchmarks.$$name"; \
	done

canary: $(STAMP)
	@PYTHONPATH=.:hlo $(BIN)/python -m benchmarks.canary

# The wheels of jax hold no tests.
conformance: $(STAMP)
ifndef JAX_TESTS
	@echo "JAX_TESTS must name a checkout of jax, of the version that is here"
	@echo "if there is a tag of it:"
	@echo "  git clone https://github.com/jax-ml/jax"
	@echo "  make conformance JAX_TESTS=\$$PWD/jax"
	@exit 1
else
	$(BIN)/python -m benchmarks.conformance_benchmark --checkout="$(JAX_TESTS)"
endif

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
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
