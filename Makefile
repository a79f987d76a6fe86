# make demo: the main job.  make test: every test.  Both set themselves up; a second run rebuilds
# only what changed.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name 'Cargo.toml')
# Every test whose number of tries is larger in a proof.
PROOF_FILES := $(shell grep -rlE 'tests.proofs|oracle.strategies|hypothesis' tests --include='test_*.py')
# One more than two cores, since a third of a test's time is spent waiting for a server or a disk; in
# the order of tests/conftest.py.
WORKERS := -n 3 --dist loadfile --no-loadscope-reorder
HOT_SOURCES := pysrc/tierlog/_hot.pyx pysrc/tierlog/_hot.pxd $(wildcard pysrc/tierlog/_hot_*.pxi)
STAMPS := $(VENV)/stamps

.PHONY: help demo test quick check prose-sample bench proofs reassign-cases simulate histories models \
  spark-versions reliability disk-faults fuzz kgo fmt lock clean build

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: build  ## tier what a client writes, then real Kafka logs; read all of it back and compare
	$(BIN)/tierlog demo
	$(BIN)/tierlog demo tests/data/clean/disk1 tests/data/clean/disk2
	@echo "To have tierlog on your path: source $(BIN)/activate"

test: build $(STAMPS)/test $(STAMPS)/check $(STAMPS)/java $(STAMPS)/s3 $(STAMPS)/promtool $(STAMPS)/hdfs $(STAMPS)/kcat  ## every test
	cargo test --locked --quiet
	$(BIN)/python -m pytest $(WORKERS)

# What starts a JVM or a server, builds wheels or times something is left to `make test`.
SLOW_FOLDERS := histories integration kafka_tools packaging reliability settings simulation spark test_benches.py

quick: build $(STAMPS)/test $(STAMPS)/check  ## the tests that a developer runs every few minutes
	cargo test --locked --quiet -p tierlog-core --lib
	QUICK=1 $(BIN)/python -m pytest -q $(WORKERS) -m 'not integration and not packaging' $(addprefix --ignore=tests/,$(SLOW_FOLDERS))

check: build $(STAMPS)/test $(STAMPS)/check  ## formats, lints, types, layers
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets --quiet -- -D warnings
	! cargo tree --locked -p tierlog-core -e no-dev | grep -i pyo3
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest tierlog._core tierlog._hot --mypy-config-file pyproject.toml --allowlist tests/stubtest-allowlist.txt --ignore-unused-allowlist
	$(BIN)/lint-imports

prose-sample: build $(STAMPS)/test  ## sentences drawn at random, to be judged (COUNT=100 SEED=1)
	$(BIN)/python -m tests.prose --count $(or $(COUNT),100) --seed $(or $(SEED),1)

bench: build $(STAMPS)/test $(STAMPS)/java $(STAMPS)/s3  ## ours against the peers, in the same run
	$(BIN)/python -m benches

models: build  ## every interleaving of a few threads, tried by loom
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 RUSTFLAGS="--cfg tierlog_loom" \
	  cargo test --locked --release --quiet -p tierlog-core --target-dir target/loom --lib loom

# The last of each older version that is allowed. What starts processes of its own would mix it with
# the newest; PySpark 4.1 has no limits for streams.
OLDER_SPARKS := 4.1 4.2
SPARK_TESTS := tests/spark --ignore=tests/spark/test_cluster.py --deselect=tests/spark/test_rebuild.py::test_the_command
NO_LIMITS := --ignore=tests/spark/test_buckets.py --ignore=tests/spark/test_stream_reader.py $(addprefix \
  --deselect=tests/spark/test_stream.py::test_,every_record_once_over_limits_and_restarts \
  a_batch_that_failed_is_read_again_as_it_was what_retention_removed)

spark-versions: build $(STAMPS)/test $(STAMPS)/java $(STAMPS)/s3 $(addprefix .cache/pyspark-,$(OLDER_SPARKS))  ## the tests of Spark with every older version of PySpark that is allowed
	for version in $(OLDER_SPARKS); do \
	  PYTHONPATH=$(CURDIR)/.cache/pyspark-$$version $(BIN)/python -m pytest $(SPARK_TESTS) \
	    -W ignore::pytest.PytestUnraisableExceptionWarning $$([ $$version != 4.1 ] || echo '$(NO_LIMITS)') || exit 1; \
	done

.cache/pyspark-%: | $(STAMPS)/test
	$(BIN)/python -m pip install --quiet --no-deps --target $@.part 'pyspark==$*.*'
	rm -rf $@
	mv $@.part $@
	touch $@

proofs: build models spark-versions $(STAMPS)/test $(STAMPS)/java $(STAMPS)/s3  ## the slow proofs: 100 killed workers, every bench, 10 times the examples, at random
	cargo test --locked --release --quiet -p tierlog-core -- --ignored
	PROOFS=1 $(BIN)/python -m pytest $(WORKERS) $(PROOF_FILES)

reassign-cases: build $(STAMPS)/test $(STAMPS)/java  ## the test plan of KIP-73 on real clusters (20 minutes), as in docs/REASSIGN.md
	$(BIN)/python -m tests.reassign.cases

CYCLES ?= 1000
SEED ?= $(shell echo $$RANDOM)

reliability: build $(STAMPS)/test  ## kill the manager at every point, CYCLES times, and compare what is left (SEED repeats a run)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.reliability.matrix --cycles $(CYCLES) --seed $(SEED)
	$(BIN)/python -m pytest -q tests/reliability/test_bad_stores.py tests/reliability/test_bad_uploads.py

disk-faults: build $(STAMPS)/test  ## an error at each file call, then power cuts: CASES calls (default: all), STATES disks per operation
	$(BIN)/python -m tests.reliability.call_errors $(if $(CASES),--cases $(CASES)) --seed $(SEED)
	$(BIN)/python -m tests.reliability.power_cut --states $(or $(STATES),300) --seed $(SEED)

SEEDS ?= 2000

simulate: build $(STAMPS)/test  ## sidecars, silent brokers, a failing store: SEEDS runs from one seed each (FIRST is the first; JOBS)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.simulation.run --seeds $(SEEDS) --first $(or $(FIRST),0) $(if $(JOBS),--jobs $(JOBS))

# Without a bound it goes on until it is interrupted.
FUZZ_OPTIONS := $(if $(RUNS),--runs $(RUNS)) $(if $(FUZZ_SECONDS),--seconds $(FUZZ_SECONDS)) \
  $(if $(TARGET),--target $(TARGET)) $(if $(MINIMISE),--minimise)

fuzz: build $(STAMPS)/test  ## fuzz the Rust core for RUNS inputs or FUZZ_SECONDS (TARGET=scan, MINIMISE=1 writes the corpus)
	$(BIN)/python -m tests.fuzzing.run $(FUZZ_OPTIONS)

MINUTES ?= 10

histories: build $(STAMPS)/test $(STAMPS)/java  ## three real brokers and their sidecars under restarts for MINUTES, against a ledger (SEED repeats)
	$(BIN)/python -m tests.histories.run --seed $(SEED) --minutes $(MINUTES)

kgo: build $(STAMPS)/test  ## the tests of franz-go's client against a node, with RECORDS for its groups (needs Go)
	$(BIN)/python -m tests.node.kgo $(if $(RECORDS),--records $(RECORDS))

fmt: $(STAMPS)/check  ## bring every file into shape
	cargo fmt --all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: build $(STAMPS)/check  ## write the lock files again, from pyproject.toml
	$(BIN)/python requirements/lock.py

clean:  ## everything that make has made
	rm -rf target $(VENV) .cache pysrc/tierlog/*.so

build: $(STAMPS)/build

$(STAMPS)/tools:
	@command -v cargo >/dev/null || { echo "tierlog needs a Rust toolchain (cargo): see https://rustup.rs" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tierlog needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1; }
	.ci/system-packages cc
	$(PYTHON) -m venv $(VENV)
	mkdir -p $@ && rmdir $@ && touch $@

$(STAMPS)/run: requirements/run.lock $(STAMPS)/tools
	$(BIN)/pip install -q --require-hashes -r $<
	@touch $@

$(STAMPS)/build: pyproject.toml setup.py $(RUST_SOURCES) $(HOT_SOURCES) $(STAMPS)/run
	@echo "Building the native code: some minutes the first time"
	$(BIN)/pip install -q --no-build-isolation --no-deps -e .
	@touch $@

$(STAMPS)/test: requirements/test.lock $(STAMPS)/build
	$(BIN)/pip install -q --require-hashes -r $<
	@touch $@

$(STAMPS)/check: requirements/check.lock $(STAMPS)/build
	$(BIN)/pip install -q --require-hashes -r $<
	@touch $@

# A real S3 server beside moto. Without Go or its registry the store tests run on moto alone, and the
# head of the test run says so.
$(STAMPS)/s3: $(STAMPS)/test
	@{ command -v go >/dev/null && $(BIN)/python -m tests.remote.s3_server && touch $@; } \
	  || echo "versitygw was not built: S3 tests run against moto only" >&2

# The judge of what a scrape shows. Without it that one test does not run, and the head says so.
$(STAMPS)/promtool: $(STAMPS)/test
	@{ $(BIN)/python -m tests.metrics.promtool && touch $@; } \
	  || echo "promtool is not to be had: nobody but us judges the metrics' text" >&2

$(STAMPS)/java: $(STAMPS)/tools
	.ci/system-packages java javac mvn
	@touch $@

# A client that its users know. Without it its tests do not run, and the head says so.
$(STAMPS)/kcat: $(STAMPS)/tools
	@{ .ci/system-packages kcat && touch $@; } || echo "kcat is not to be had: its tests do not run" >&2

# The jars of a real HDFS, so that no test waits for their download.
$(STAMPS)/hdfs: tests/remote/hdfs_pom.xml $(STAMPS)/test $(STAMPS)/java
	$(BIN)/python -m tests.remote.hdfs_cluster
	@touch $@
