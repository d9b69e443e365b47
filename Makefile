# `make run` starts the broker, `make test` tests it in five minutes, `make help` lists the other commands.
#
# .venv              one environment for everything: the wheel of amqpd, its hot modules compiled where there is a C compiler
# .venv-interpreted  the same packages, but amqpd imported from the sources, nothing compiled
#
# PYTHON=python3.12 chooses another Python; ARGS, PYTEST_ARGS and BENCH_ARGS are passed on; WORKERS is the number of test processes.

PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
WORKERS ?= 3

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Without it each test process would rewrite the assertions of all tests, and each broker compile its modules, again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PLAIN := .venv-interpreted
BIN := $(VENV)/bin
PAGE := amqpd/management/page
PAGE_SOURCES := $(shell find $(PAGE) \( -name node_modules -o -name dist \) -prune -o -type f ! -name '*.md' ! -name schema.d.ts -print)
SOURCES := $(shell find amqpd routing storage cli -path $(PAGE) -prune -o -type f ! -name '*.pyc' ! -name '*.md' ! -name '.*' -print)
export PAGE_BUILD_WORK ?= $(CURDIR)/$(VENV)/page

# What a test run selects. tests/README.md has the table of what runs where.
WHOLE := not ci_long and not on_demand
QUICK := $(WHOLE) and not slow and not external
PYTEST := -P -m pytest --durations=20 --durations-min=1 $(PYTEST_ARGS)
TEST = TMPDIR="$$(.ci/tmpdir)" $(BIN)/python $(PYTEST)
TEST_SOURCES = TMPDIR="$$(.ci/tmpdir)" $(PLAIN)/bin/python $(PYTEST)
SPREAD = -n $(WORKERS) --dist loadfile
# Interpreted, `make test` runs what speaks AMQP and reads files; `make test-all` runs every test of a compiled module.
SMOKE := $(addprefix tests/,conformance golden channel protocol)
COMPILED_PACKAGES := $(addprefix tests/,broker channel connection conformance golden protocol routing storage)

help: ## this list
	@echo "make COMMAND:"; sed -nE 's/^([a-z-]+):.*## (.*)/  \1|\2/p' Makefile | awk -F'|' '{printf "%-17s %s\n", $$1, $$2}'

.PHONY: help run cluster-run
run: ## start the broker: AMQP on 5672, the page on 127.0.0.1:15672, data in ./amqpd-data (ARGS="--amqp.port 0")
	@exec .ci/start $(ARGS)

cluster-run: $(VENV)/.installed $(VENV)/.extra-cluster $(VENV)/.extra-test $(VENV)/.kafka ## start three nodes over three Kafka brokers (ARGS="--seconds 60")
	@exec $(BIN)/python -P tests/cluster/run.py $(ARGS)

# --- Tests

# The interpreted tests and lint need no compiler, so they run beside it. What `+` starts prints at once, the other part when it ends.
.PHONY: test test-compiled test-interpreted lint
test: $(VENV)/.tools ## every unit, clause and promise once, compiled; a part of it interpreted; lint: five minutes
	@$(MAKE) --keep-going --output-sync=target -j2 test-compiled lint-and-interpreted

# Tests wait half of their time, so two cores keep four processes busy.
test-compiled: WORKERS = 4
test-compiled: compiled ## the part of `make test` that tests the installed wheel
	+@$(TEST) $(SPREAD) -m '$(QUICK)' tests interop

test-interpreted: $(PLAIN)/.ready ## the part of `make test` that tests the sources
	@echo "== pytest, interpreted: $$($(PLAIN)/bin/python -P -m amqpd --version)"
	@$(TEST_SOURCES) -m 'not compiled_only and $(QUICK)' $(SMOKE)

# Assertions are rewritten here once, while the compiler runs, and not by each process of test-compiled.
.PHONY: lint-and-interpreted compiled rewritten
lint-and-interpreted: rewritten lint test-interpreted

rewritten: $(PLAIN)/.ready
	@$(PLAIN)/bin/python $(PYTEST) --collect-only -q tests interop > $(VENV)/collected.log || { cat $(VENV)/collected.log; exit 1; }

compiled: $(VENV)/.installed $(VENV)/.page $(VENV)/.extra-test
	@echo "== pytest, installed: $$($(BIN)/amqpd --version)"
	@[ -z "$${CI:-}" ] || $(BIN)/amqpd --version | grep -q compiled || { echo "CI must test the compiled package" >&2; exit 1; }

lint: $(PLAIN)/.ready ## ruff, mypy --strict, the types of the page
	$(BIN)/ruff check .
	@.ci/mypy
	@$(PLAIN)/bin/python setup.py --quiet build_page --check || { [ $$? = 3 ] && [ -z "$${TEST_REQUIRE_PAGE:-}" ]; }

.PHONY: test-all test-rest test-docs test-page test-peer interop foreign test-long test-cluster cluster-test torture check-metrics
EVERYTHING := $(addprefix $(VENV)/.extra-,test all-tests spark docs page)
test-all: ## make test and make test-rest
	@$(MAKE) test; $(MAKE) test-rest

# Playwright leaves an event loop running, so the page has a run of its own. `hypothesis` is the marker of tests with random
# examples. In the thorough profile the clauses of conformance come byte by byte, too. Interpreted, the quick profile is enough.
test-rest: export TEST_PROFILE := thorough
test-rest: WORKERS = 4
test-rest: compiled $(EVERYTHING) $(PLAIN)/.ready browser ## what make test leaves out: slow tests, more examples, a JVM, a browser, Prometheus
	@status=0; \
	$(TEST) $(SPREAD) -m '$(WHOLE) and (slow or external or hypothesis)' tests interop --ignore=tests/limits --ignore=tests/page || status=$$?; \
	$(MAKE) test-page || status=$$?; \
	$(TEST) $(SPREAD) -m '$(WHOLE)' tests/conformance || status=$$?; \
	TEST_PROFILE=quick $(TEST_SOURCES) $(SPREAD) -m 'not compiled_only and $(WHOLE)' $(COMPILED_PACKAGES) --ignore-glob='*_pika.py' || status=$$?; \
	$(TEST) -m '$(WHOLE)' tests/limits || status=$$?; exit $$status

test-docs: compiled $(EVERYTHING) ## every block of the documentation
	@$(TEST) $(SPREAD) -m '$(WHOLE)' tests/docs

test-page: compiled $(VENV)/.extra-page browser ## the web page in Debian's Chromium
	@$(TEST) $(SPREAD) -m '$(WHOLE)' tests/page

test-peer: compiled rabbitmq ## beside a live RabbitMQ, Debian's package
	@$(TEST) $(SPREAD) -m external --ignore=interop/kafka --ignore=interop/clients interop

interop: compiled rabbitmq $(VENV)/.clients $(VENV)/.rabbitmqadmin-ng $(VENV)/.kafka-clients $(VENV)/.extra-all-tests ## clients, frameworks and tools with amqpd and with RabbitMQ or Kafka: a matrix (ARGS="--clients pika")
	@TMPDIR="$$(.ci/tmpdir)" $(BIN)/python -P -c 'import runpy, sys; sys.path.append("."); runpy.run_module("interop.clients", run_name="__main__")' --out $(VENV)/interop $(ARGS)

foreign: compiled ## a client's own test suite with amqpd (SUITE=py-amqp ARGS=--beside: with RabbitMQ, too)
	@TMPDIR="$$(.ci/tmpdir)" $(BIN)/python -P -c 'import runpy, sys; sys.path.append("."); runpy.run_module("interop.foreign", run_name="__main__")' --out $(VENV)/foreign $(ARGS) $(SUITE)

check-metrics: compiled ## dashboards and alert rules in Debian's Prometheus
	@.ci/install prometheus promtool; $(TEST) tests/prometheus

LONG = $(BIN)/python $(PYTEST) -s -m ci_long
test-long: WORKERS = 4
test-long: compiled $(EVERYTHING) ## crashes and faults for minutes, nodes over Kafka among them
	@# The matrix of clients takes the longest, so it begins first.
	@$(LONG) $(SPREAD) --no-loadscope-reorder interop/clients tests

test-cluster: compiled $(VENV)/.extra-cluster $(VENV)/.kafka ## the part of `make test-long` that needs Kafka
	@$(LONG) $(SPREAD) tests/cluster

cluster-test: compiled $(VENV)/.extra-spark $(VENV)/.kafka $(VENV)/.kafka-spark ## nodes over Kafka for three hours (PYTEST_ARGS="-k kill")
	TEST_CLUSTER_LONG=1 $(BIN)/python $(PYTEST) -s --timeout 0 -m 'on_demand or ci_long' tests/cluster

torture: compiled ## 1,000 kills, 500 power cuts, 10 million crash states: hours (PYTEST_ARGS="-k millions")
	TEST_CRASH_STATES=$${TEST_CRASH_STATES:-10000000} $(BIN)/python $(PYTEST) -s --timeout 0 -m 'on_demand or ci_long' tests/crash

# --- Measurements and what is generated

.PHONY: bench bench-guard bench-page bench-cluster bench-kafka bench-export bench-curves compare compare-record docs pictures build page clean
bench: $(VENV)/.installed $(PLAIN)/.ready ## beside RabbitMQ: 22 minutes (BENCH_ARGS="--scenarios S1,S3 --rounds 1")
	$(BIN)/python -m interop.bench --interpreted $(PLAIN)/bin/python $(BENCH_ARGS)

bench-guard: $(VENV)/.installed ## fails when a message costs 15 % more than recorded: half a minute
	$(BIN)/python -m interop.bench.guard $(BENCH_ARGS)

bench-page: $(VENV)/.page $(VENV)/.extra-page browser ## what the web page costs the broker
	$(BIN)/python -P -c 'import runpy, sys; sys.path.append("."); runpy.run_module("interop.bench.page", run_name="__main__")' $(BENCH_ARGS)

bench-cluster: $(VENV)/.installed $(VENV)/.extra-cluster $(VENV)/.extra-test $(VENV)/.kafka ## three nodes beside three of RabbitMQ
	$(BIN)/python -m interop.bench.cluster $(BENCH_ARGS)

bench-kafka: $(VENV)/.installed $(VENV)/.extra-cluster $(VENV)/.extra-test $(VENV)/.kafka-clients ## the Kafka listener beside Apache Kafka
	$(BIN)/python -m interop.bench.kafka $(BENCH_ARGS)

bench-export: $(VENV)/.installed $(VENV)/.extra-spark $(VENV)/.extra-all-tests $(VENV)/.extra-cluster $(VENV)/.kafka-clients $(VENV)/.kafka-spark ## a million records decoded and exported
	$(BIN)/python -P -c 'import runpy, sys; sys.path.append("."); runpy.run_module("interop.bench.export_decode", run_name="__main__")' $(BENCH_ARGS)
	$(BIN)/python -m interop.bench.export
	$(BIN)/python -P -c 'import runpy, sys; sys.path.append("."); runpy.run_module("interop.bench.export_peers", run_name="__main__")'

bench-curves: $(VENV)/.installed ## the CPU time of a message as queues, bindings, connections ... grow (BENCH_ARGS="--far")
	$(BIN)/python -m interop.bench.curves $(BENCH_ARGS)

compare: $(VENV)/.installed $(VENV)/.extra-test ## recorded conversations with RabbitMQ beside ours; writes docs/compatibility.md
	$(BIN)/python -m interop.compare $(BENCH_ARGS)

compare-record: $(VENV)/.installed $(VENV)/.extra-test rabbitmq ## record the conversations with RabbitMQ again
	$(BIN)/python -m interop.compare --record $(BENCH_ARGS)

docs: $(VENV)/.extra-docs ## the documentation as a site, docs/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m interop.manual.site; echo "$(CURDIR)/docs/site/index.html"

pictures: $(VENV)/.page $(VENV)/.extra-page $(VENV)/.extra-test browser ## the pictures of the documentation
	TEST_PICTURES='$(CURDIR)/docs/pictures' $(TEST) tests/page/test_pictures.py

build: $(VENV)/.extra-wheels ## a manylinux wheel and a source distribution, into dist/
	@.ci/build dist; ls -l dist

page: $(VENV)/.tools ## the web page, for a broker that runs from the sources and for the installed one
	@$(BIN)/python setup.py --quiet build_page
	@if [ -e $(VENV)/.installed ]; then $(MAKE) $(VENV)/.page; fi

clean: ## remove everything that make has made
	rm -rf $(VENV) $(PLAIN) $(PAGE)/dist $(PAGE)/node_modules dist build docs/site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find amqpd routing storage cli tests interop -name __pycache__ -type d -prune -exec rm -rf {} +

# --- The environments. A stamp is made again when pyproject.toml or setup.py changes, the compiled package when a source does.

.PHONY: export sql spark kafka kafka-spark kafka-clients clients rabbitmqadmin-ng table-readers browser rabbitmq
export: $(VENV)/.installed $(VENV)/.extra-export ## add what `amqpctl export` needs to .venv
sql: $(VENV)/.installed $(VENV)/.extra-sql ## add what `amqpctl sql` needs to .venv
spark: $(VENV)/.installed $(VENV)/.extra-spark ## add what format("amqp") and `amqpctl export --engine spark` need to .venv
kafka: $(VENV)/.kafka ## add Apache Kafka's jars, for tests/cluster
kafka-spark: $(VENV)/.kafka-spark
table-readers: $(VENV)/.table-readers ## add DuckDB and Spark as readers of Iceberg's and Delta's tables, for tests/export
kafka-clients: $(VENV)/.kafka-clients ## add Kafka's clients in other languages and its tools, for interop/kafka
clients: $(VENV)/.clients ## add AMQP clients in other languages, for interop/clients
rabbitmqadmin-ng: $(VENV)/.rabbitmqadmin-ng ## add the newer rabbitmqadmin, for interop/clients: Cargo builds it in some minutes
browser: ; @.ci/install browser
rabbitmq: ; @.ci/install rabbitmq

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "amqpd needs Python 3.11 or later, and $(PYTHON) is %d.%d; name another: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	@$(PYTHON) -m venv $(@D) || { echo "no virtual environment could be made; on Debian: apt install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.tools: pyproject.toml setup.py | $(VENV)/.created ; @.ci/pip requirements build; touch $@
$(VENV)/.extra-%: pyproject.toml | $(VENV)/.tools ; @.ci/pip requirements $*; touch $@
# The build needs the tools alone, so `make test` downloads the rest beside it.
$(VENV)/.built: $(VENV)/.tools $(SOURCES) ; @.ci/pip amqpd; touch $@
$(VENV)/.installed: $(VENV)/.built $(VENV)/.extra-run ; @touch $@

$(VENV)/.page: $(VENV)/.installed $(PAGE_SOURCES)
	@$(BIN)/python setup.py --quiet build_page --into "$$($(BIN)/python -P -c 'import amqpd.management as m; print(*m.__path__)')/page/dist" || [ $$? = 3 ]
	@touch $@

# The packages of .venv, but the sources before all of them.
$(PLAIN)/.ready: $(addprefix $(VENV)/.extra-,run test dev)
	@$(PYTHON) -m venv --without-pip $(@D)
	@printf '%s\n' '$(CURDIR)' "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" > \
		"$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sources.pth"
	@touch $@

$(VENV)/.kafka: tests/cluster/jars/pom.xml | $(VENV)/.created ; @.ci/install jars $< $(VENV)/kafka; touch $@
$(VENV)/.kafka-clients: $(wildcard interop/kafka/*/*.xml interop/kafka/*/*.go interop/kafka/*/go.sum interop/kafka/kafkajs/package-lock.json) | $(VENV)/.created
	@.ci/install kafka-clients $(VENV)/kafka-clients; touch $@
$(VENV)/.table-readers: tests/export/jars/tables.xml .ci/install | $(VENV)/.created
	@.ci/install table-readers $(VENV)/table-readers; touch $@
$(VENV)/.clients: $(wildcard interop/clients/*/*.xml interop/clients/*/*.java interop/clients/*/*.go interop/clients/*/go.sum interop/clients/*/*.[ch] interop/clients/Cargo.lock interop/clients/*/src/*.rs interop/clients/package-lock.json) | $(VENV)/.created
	@.ci/install clients $(VENV)/clients; touch $@
$(VENV)/.rabbitmqadmin-ng: .ci/install | $(VENV)/.created ; @.ci/install rabbitmqadmin-ng $(VENV)/clients; touch $@
$(VENV)/.kafka-spark: tests/cluster/jars/spark.xml | $(VENV)/.created ; @.ci/install jars $< $(VENV)/kafka-spark; touch $@
