# ch_sink: every target sets up what it needs. See README.md.
#
#   make demo        recorded MariaDB and PostgreSQL streams into ClickHouse tables, compared with their source
#   make test        lint, types, layers and all tests (about half an hour on two cores)
#   make quick       the tests that take seconds
#   make lint        ruff, mypy, import-linter
#   make bench       the benchmarks
#   make test-long   drawn histories over all engines, for an hour or so
#   make lock        compile requirements.lock again
#   make clean       remove what the targets made, the virtual environment included

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ch_sink-installed
# The JVM is looked up when a recipe runs, so that one just installed is found.
WITH_JAVA = export JAVA_HOME="$$(compose/java_home.sh)" &&

.DEFAULT_GOAL := help
.PHONY: help venv java demo test quick lint bench test-long lock clean

help:
	@sed -n '3,10s/^#   //p' Makefile

$(STAMP): pyproject.toml requirements.lock compose/make_venv.sh
	@compose/make_venv.sh $(VENV)
	@touch $@

venv: $(STAMP)

java:
	@compose/java_home.sh >/dev/null

demo: $(STAMP) java
	@$(WITH_JAVA) $(BIN)/ch_sink demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The integration tests are about half of the work: the others run beside them, and are shown at the end.
test: lint java
	@$(WITH_JAVA) log=$$(mktemp); \
	  $(BIN)/pytest -m "not long" tests --ignore=tests/integration >$$log 2>&1 & beside=$$!; \
	  trap "kill $$beside 2>/dev/null; rm -f $$log" EXIT; trap "exit 130" INT TERM; \
	  integration=0; $(BIN)/pytest -m "not long" tests/integration || integration=$$?; \
	  others=0; wait $$beside || others=$$?; cat $$log; \
	  test $$integration -eq 0 -a $$others -eq 0

quick: $(STAMP) java
	$(WITH_JAVA) $(BIN)/pytest -m "not slow and not long"

test-long: $(STAMP) java
	$(WITH_JAVA) $(BIN)/pytest -m long --timeout=14400

bench: $(STAMP) java
	$(WITH_JAVA) $(BIN)/python -m benchmarks

# Without index addresses: the lock holds wherever packages come from.
lock: $(STAMP)
	$(BIN)/pip install -q pip-tools
	$(BIN)/pip-compile -q --extra dev,embedded,avro --strip-extras --no-header --no-emit-index-url \
	  --no-emit-trusted-host --no-emit-find-links --no-annotate --allow-unsafe -o requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
