# make demo    real flights, enriched over HTTP; prints a report, and does it again on Spark
# make test    everything that must hold: lint, types, tests; what may differ on the newest Python found, too
# make quick   what most changes can break: no processes, servers, Spark; a hundred seeds
# make coverage   which lines and branches the quick tests run; fails below the floor in pyproject.toml
# make lowest  tests of connectors, operators, the web app with the oldest libraries that pyproject.toml allows
# make lowest-spark   tests/spark with the oldest Spark that it allows
# make setup   prepares .venv; the others call it
# make bench   the tables of benchmarks/README.md
# make docs    the site of docs/, in build/site, with warnings as errors
# make pictures   those of the live page in docs/, made by its test in a headless Chromium

PYTHONS := $(shell .ci/pythons)
OLDEST  := $(firstword $(PYTHONS))
NEWEST  := $(lastword $(PYTHONS))
BIN     := .venv/bin

# the quick tests are in three processes, each of which imports and collects its own part only: those of calls
# wait for much of their time
QUICK   := -m "not slow and not spark and not web and not broker" --hypothesis-profile=quick
STEPS   := $(addprefix tests/,vectors windowing simulation state joins keyed codec)
CALLS   := $(addprefix tests/,async_wait guards)
# of all tests those that take long each, about half of the time
LONG    := $(addprefix tests/,simulation crash examples testing typing web test_cli.py test_readme.py test_package.py)
RUN     := python
# for a make within make: as many at a time as that has, or three
THREE    = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j3)

# modules are compiled once, not by each of the hundreds of processes that tests start, even where the
# environment asks for the latter
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick quick-calls quick-steps quick-rest coverage bench pictures setup setup-newest lint types
.PHONY: tests tests-long tests-rest tests-spark tests-newest lowest lowest-spark docs clean
.DEFAULT_GOAL := setup

demo: setup
	$(BIN)/python -m examples.flights
	$(BIN)/python -m examples.flights.on_spark

# four at a time, the long ones first: each waits for much of its time, and what starts last has both cores. The
# output of one comes when it is through
test:
	@$(MAKE) --no-print-directory -j2 lint setup-newest
	@$(MAKE) --no-print-directory -j4 --output-sync=target tests-spark tests-long tests-rest tests-newest types docs

quick: lint
	@$(MAKE) --no-print-directory $(THREE) --output-sync=target quick-calls quick-steps quick-rest

quick-calls quick-steps quick-rest: export ASYNCSTREAM_SEEDS = 100
quick-steps: setup
	$(BIN)/$(RUN) -m pytest $(QUICK) $(STEPS)

quick-calls: setup
	$(BIN)/$(RUN) -m pytest $(QUICK) $(CALLS)

quick-rest: setup
	$(BIN)/$(RUN) -m pytest $(QUICK) $(patsubst %,--ignore=%,$(STEPS) $(CALLS))

coverage: setup
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(MAKE) --no-print-directory $(THREE) --output-sync=target RUN="coverage run" quick-calls quick-steps quick-rest
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

bench: setup
	$(BIN)/python -m benchmarks

pictures: setup
	SCREENSHOTS=docs $(BIN)/python -m pytest tests/web/test_dashboard.py -k pictures

setup: .venv/ready

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# two processes, each of which collects its own part only. Processes that are dealt tests by another collect
# all of them, and each test takes two milliseconds more
tests: tests-long tests-rest

tests-long: setup
	$(BIN)/python -m pytest $(LONG)

tests-rest: setup
	$(BIN)/python -m pytest $(patsubst %,--ignore=%,$(LONG) tests/spark)

tests-spark: setup
	$(BIN)/python -m pytest tests/spark

# what may differ once more on the newest Python, if that is another one than .venv has
ifneq ($(OLDEST),$(NEWEST))
setup-newest: .venv-newest/ready
tests-newest: setup-newest
	.venv-newest/bin/python -m pytest -p no:cacheprovider --hypothesis-profile=quick -m "not once and not broker"
else
setup-newest tests-newest:
endif

.venv/ready: pyproject.toml
	$(call venv,.venv,$(OLDEST),dev)

.venv-newest/ready: pyproject.toml
	$(call venv,.venv-newest,$(NEWEST),test)

lowest: .venv-lowest/ready
	.venv-lowest/bin/python -m pytest -p no:cacheprovider --hypothesis-profile=quick -m "not slow and not spark"

.venv-lowest/ready: export PIP_CONSTRAINT = build/lowest.txt
.venv-lowest/ready: pyproject.toml
	@mkdir -p build && .ci/lowest > build/lowest.txt
	$(call venv,.venv-lowest,$(OLDEST),test)

lowest-spark: .venv-lowest-spark/ready
	.venv-lowest-spark/bin/python -m pytest -p no:cacheprovider tests/spark

.venv-lowest-spark/ready: export PIP_CONSTRAINT = build/lowest-spark.txt
.venv-lowest-spark/ready: pyproject.toml
	@mkdir -p build && .ci/lowest | grep pyspark > build/lowest-spark.txt
	$(call venv,.venv-lowest-spark,$(OLDEST),spark)

# venv(folder, python, dependency group); of its modules most are never imported, so none is compiled before it is
define venv
	@test -n "$(2)" || { echo "asyncstream needs Python 3.11 or newer, with venv; none was found"; exit 1; }
	$(2) -m venv --clear $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --editable . --group $(3)
	@touch $(1)/ready
endef

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean:
	rm -rf build .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis
