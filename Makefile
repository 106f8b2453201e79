# ch_sink: every target sets up what it needs. See README.md.
#
#   make demo        recorded MariaDB and PostgreSQL streams into ClickHouse tables, compared with their source;
#                    ENGINE=25.8: on an older ClickHouse, one of compose/engines
#   make test        lint, types, layers and tests (8 minutes on two cores)
#   make quick       the tests without servers and long draws
#   make lint        ruff, mypy, import-linter
#   make bench       the benchmarks in brief (five minutes); make bench-full: all workloads
#   make test-long   what `make test` leaves out: kills, live databases, drawn histories (hours)
#   make test-containers  the tests on real servers and replicas (needs Docker; CH_SINK_TEST_CLICKHOUSE: other versions)
#   make test-spark  the job's tests on the lowest version of Spark, or that of SPARK=, such as 3.5.9
#   make docs        build the site of docs/ into build/site
#   make lock        compile requirements.lock again
#   make clean       remove what the targets made, the virtual environment included

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
# Tests wait for servers half of their time: four workers keep two cores busy.
WORKERS ?= 4
STAMP := $(VENV)/.ch_sink-installed
# The JVM is looked up when a recipe runs, so that one just installed is found.
WITH_JAVA = export JAVA_HOME="$$(compose/java_home.sh)" &&
# Bytecode for all workers, runs and processes that tests start: written once, and not beside the sources.
COMPILED = export PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX="$(abspath $(VENV))/bytecode" &&

.DEFAULT_GOAL := help
.PHONY: help venv java archive demo engines every-engine test quick lint bench bench-full test-long test-containers
.PHONY: test-spark docs lock clean

help:
	@sed -n '3,16s/^#   //p' Makefile

$(STAMP): pyproject.toml requirements.lock compose/make_venv.sh compose/compile_scanner.py $(wildcard ch_sink/decode/native/*.[ch])
	@compose/make_venv.sh $(VENV)
	@touch $@

venv: $(STAMP)

java:
	@compose/java_home.sh >/dev/null

# Halves the start of Spark's JVM, which the demo and many tests wait for.
archive: $(STAMP) java
	@$(WITH_JAVA) $(BIN)/python -m ch_sink.spark.prepare

demo: archive
	@$(if $(ENGINE),compose/engine.sh $(VENV) $(ENGINE))
	@$(WITH_JAVA) CH_SINK_ENGINE=$(ENGINE) $(BIN)/ch_sink demo

# Tests are skipped where an engine cannot be installed, so that is not an error.
engines: $(STAMP)
	@for version in 25.8 26.3; do compose/engine.sh $(VENV) $$version || true; done

every-engine: $(STAMP)
	@for pinned in compose/engines/*.txt; do compose/engine.sh $(VENV) $$(basename $$pinned .txt) || true; done

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Each worker has its own ClickHouse. See docs/testing.md.
# The first run compiles all modules once, which each worker would do otherwise.
# Lint runs beside them; what it finds is shown last and fails the run.
test: archive engines
	@$(MAKE) --no-print-directory lint >$(VENV)/lint.log 2>&1 & lint=$$!; \
	$(WITH_JAVA) $(COMPILED) { [ -d "$$PYTHONPYCACHEPREFIX" ] || $(BIN)/pytest --collect-only -q >/dev/null || true; } && \
	$(BIN)/pytest -n $(WORKERS) -m "not long"; tests=$$?; \
	wait $$lint || { cat $(VENV)/lint.log; echo "make lint failed"; exit 1; }; exit $$tests

quick: archive
	$(WITH_JAVA) $(COMPILED) $(BIN)/pytest -n $(WORKERS) -m "not slow and not long"

test-long: $(STAMP) java every-engine
	$(WITH_JAVA) $(COMPILED) $(BIN)/pytest -n $(WORKERS) -m long --timeout=14400

# Skipped tests mean that no Docker engine answers: here that is a failure.
test-containers: $(STAMP)
	@docker info >/dev/null || { echo "No Docker engine answers."; exit 1; }
	$(BIN)/pytest tests/containers --ignore tests/containers/test_demo.py --timeout=1200

SPARK ?= 4.0.0
# Spark 3 knows no newer Python and pandas than these.
OF_SPARK_3 = $(filter 3.%,$(SPARK))
test-spark: java
	@$(if $(OF_SPARK_3),PYTHON=python3.11) compose/make_venv.sh .venv-spark
	@.venv-spark/bin/python -m pip install -q --disable-pip-version-check "pyspark==$(SPARK)" $(if $(OF_SPARK_3),"pandas<3")
	@$(WITH_JAVA) .venv-spark/bin/python -m pytest -m "not long" tests/job
	@$(WITH_JAVA) .venv-spark/bin/python -m pytest --timeout=1800 tests/job/test_cluster.py

bench: $(STAMP) java
	$(WITH_JAVA) $(BIN)/python -m benchmarks suite

bench-full: $(STAMP) java
	$(WITH_JAVA) $(BIN)/python -m benchmarks suite --full

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f compose/mkdocs.yml

# Without index addresses: the lock is valid wherever packages come from, and its hashes say that they are the same.
# The image of Spark has a lock of its own, with the same versions.
COMPILE := pip-compile -q --strip-extras --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
  --no-annotate --allow-unsafe --generate-hashes
lock: $(STAMP)
	$(BIN)/pip install -q pip-tools
	$(BIN)/$(COMPILE) --extra dev,embedded,avro -o requirements.lock pyproject.toml
	$(BIN)/$(COMPILE) --extra avro -c requirements.lock -o compose/spark/requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .venv-spark build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
