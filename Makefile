# Two commands: `make run` starts the broker, `make test` runs everything that CI runs.
#
# .venv              amqpd as people install it: a wheel, its hot modules compiled when there is a C compiler
# .venv-interpreted  the same sources as they stand, nothing compiled
# Both are made when needed and remade when pyproject.toml or setup.py changes; the compiled package when a source does.
#
#   make run ARGS="--amqp.port 0"          PYTHON=python3.12 make test
#   make page         the web page beside its sources; make check-page: its types. Both fetch a Node.js where there is none
#   make spark        adds what `amqpctl export` and format("amqp") need to .venv; make build: a wheel, into dist/
#   make kafka        adds the Apache Kafka that tests/cluster starts; make cluster-run: three nodes over three brokers of it
#   make test-long    minutes of crashes and faults, which CI runs as well; make torture: hours of them
#   make test-cluster nodes over Kafka, six minutes, part of test-long; make cluster-test: hours of it
#   make test PYTEST_ARGS="-k routing"     make test-compiled, make test-interpreted: one half of it
#   make compare      against RabbitMQ's recorded answers, makes docs/compatibility.md; make compare-record: records them anew
#   make docs         the documentation as a site, into docs/site; make test-docs: everything that it shows is run
#   make test-page    the web page in Debian's Chromium, three minutes, which CI runs as well; make pictures: those of docs/ anew
#   make test-peer    beside a live RabbitMQ, two or three minutes, which CI runs as well
#   make check-metrics  dashboards and alert rules against a real Prometheus, which `make test` does where there is one
#   make bench-page   what the web page costs the broker, and how soon one sees something: a minute
#   make bench        beside RabbitMQ, 22 minutes at most; make bench-guard: has the fast road become dearer? half a minute

PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?=
# The interpreted run: of the modules that are compiled elsewhere, but for what stock clients do over kills and restarts.
INTERPRETED_TESTS ?= $(addprefix tests/,broker channel connection conformance golden protocol routing storage) --ignore-glob='*_pika.py'
MARKS := not on_demand and not ci_long and not peer
# What took longest; .ci/run shows the slowest of all lanes.
SLOWEST := --durations=40 --durations-min=1

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
PLAIN := .venv-interpreted
PIP_FLAGS := --quiet --disable-pip-version-check
SETUP := pyproject.toml setup.py
SOURCES := $(shell find amqpd routing storage cli -path amqpd/management/page -prune -o -type f ! -name '*.pyc' ! -name '*.md' ! -name '.*' -print)
# The page's, which no compiler has to be asked for: what npm fetched stays in $(VENV)/page.
PAGE := amqpd/management/page
PAGE_SOURCES := $(shell find $(PAGE) \( -name node_modules -o -name dist \) -prune -o -type f ! -name '*.md' ! -name schema.d.ts -print)
export PAGE_BUILD_WORK ?= $(CURDIR)/$(VENV)/page
# pip, of whose long tale only what setup.py says is shown; all of it when it fails.
TOLD = $(VENV)/bin/pip --disable-pip-version-check -v $(1) 2>&1 | tee $(VENV)/build.log | sed -un 's/^ *\(amqpd: \)/\1/p' || \
	{ cat $(VENV)/build.log >&2; exit 1; }
# The requirements of pyproject.toml, one a line: the build's and the package's own, then those of the extras named.
REQUIREMENTS = import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb")); e = p["project"]["optional-dependencies"]; \
	print(*p["build-system"]["requires"], *p["project"]["dependencies"], *(r for x in sys.argv[1:] for r in e[x]), sep="\n")

.PHONY: help run test test-compiled test-interpreted lint check-page page build clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile
	@echo "targets: run cluster-run spark kafka test test-compiled test-interpreted test-long test-cluster cluster-test test-peer test-docs test-page docs pictures torture lint page build bench bench-page bench-cluster bench-guard bench-export compare compare-record check-metrics clean"

# The first time, at a terminal, there is a broker before there is a compiled one: the sources run interpreted while the compiler
# is at work, in a session of its own, which a Ctrl-C here leaves alone. A script's is compiled before it starts: nobody waits, and
# what it measures is no surprise. So is each later one, where sources have changed.
run:
	@if [ -e $(VENV)/.installed ] || [ -n "$${AMQPD_INTERPRETED:-}" ] || [ ! -t 1 ] || \
			! command -v flock > /dev/null || ! command -v setsid > /dev/null; then \
		$(MAKE) --no-print-directory $(VENV)/.page || exit; exec $(VENV)/bin/amqpd $(ARGS); fi; \
	$(MAKE) --no-print-directory $(VENV)/.first; \
	(set +e; exec setsid env -u MAKEFLAGS -u MAKELEVEL nice bash -c "$$BEHIND" < /dev/null > /dev/null) & \
	exec $(VENV)/bin/amqpd $(ARGS)

# What `make run` leaves at work, once however often it is called meanwhile. Its last line goes to the terminal.
define BEHIND
exec 9> $(VENV)/.building; flock -n 9 || exit 0
$(MAKE) --no-print-directory page > $(VENV)/page.log 2>&1 || grep '^amqpd: ' $(VENV)/page.log >&2 || true
if ! BUILD_BEHIND=here $(MAKE) --no-print-directory $(VENV)/.installed > $(VENV)/first.log 2>&1; then
	echo "amqpd: the compiled package could not be built, see $(VENV)/build.log; the broker runs on, interpreted" >&2
elif $(VENV)/bin/amqpd --version | grep -q compiled; then
	echo "amqpd: the compiled package is there, several times faster: end the broker (Ctrl-C) and make run again" >&2
else
	tail -n 2 $(VENV)/first.log >&2
fi
endef
export BEHIND

# The sources as they stand, until the compiled package takes their place: amqpd and amqpctl are in $(VENV)/bin from then on.
$(VENV)/.first: $(VENV)/.tools
	@$(VENV)/bin/pip install $(PIP_FLAGS) --no-deps --no-build-isolation --editable .
	@echo "the broker starts now, interpreted; the compiled package, several times faster, is built beside it: two minutes," \
		"four on a busy machine"
	@touch $@

# Three nodes over three brokers of Kafka on this machine, with clients that go on whatever is killed: docs/cluster.md.
# make cluster-run ARGS="--seconds 60"
.PHONY: cluster-run
cluster-run: $(VENV)/.installed $(VENV)/.cluster $(VENV)/kafka/.ready
	@exec $(VENV)/bin/python -P tests/cluster/run.py $(ARGS)

.PHONY: spark
spark: $(VENV)/.installed $(VENV)/.spark
	@echo "$(VENV)/bin/amqpctl export and format(\"amqp\") are ready; in a session of your own: PYSPARK_PYTHON=$(CURDIR)/$(VENV)/bin/python"

# Apache Kafka's jars, for tests/cluster: Debian's maven brings them, and a Java.
MAVEN ?= mvn
COPY_JARS := org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies
.PHONY: kafka
kafka: $(VENV)/kafka/.ready
	@echo "$(VENV)/kafka has Kafka's jars: $(VENV)/bin/python -P -m pytest tests/cluster"

$(VENV)/kafka/.ready: tests/cluster/jars/pom.xml | $(VENV)/.created
	@command -v $(MAVEN) >/dev/null || { echo "Kafka's jars come by Maven; on Debian: apt install maven" >&2; exit 1; }
	@echo "downloading Kafka into $(VENV)/kafka: 44 MB"
	@rm -rf $(@D)
	@$(MAVEN) --batch-mode --quiet -f $< $(COPY_JARS) -DoutputDirectory='$(CURDIR)/$(@D)'
	@touch $@

# Spark's Kafka source, which a test of tests/cluster reads a queue's topic with.
.PHONY: kafka-spark
kafka-spark: $(VENV)/kafka-spark/.ready

$(VENV)/kafka-spark/.ready: tests/cluster/jars/spark.xml | $(VENV)/.created
	@echo "downloading Spark's Kafka source into $(VENV)/kafka-spark: 7 MB"
	@rm -rf $(@D)
	@$(MAVEN) --batch-mode --quiet -f $< $(COPY_JARS) -DoutputDirectory='$(CURDIR)/$(@D)'
	@touch $@

# Most tests wait, for a JVM, a time-out, a disk: six lanes at once, each shown when it has ended, and what fails in one keeps
# none from its end. Lint and the interpreted run need no compiler, and go on beside it. Those that measure latency run alone,
# behind all others.
LANES = $(MAKE) --no-print-directory --keep-going --output-sync=target -j6
test: $(PLAIN)/.installed
	@echo "the interpreted tests run beside the compiler, the others behind it: each part is shown when it has ended"
	@status=0; $(LANES) test-interpreted lint lane-rooms lane-crash lane-doors lane-export lane-wire || status=$$?; \
	$(MAKE) --no-print-directory lane-limits || status=$$?; exit $$status

test-compiled: $(VENV)/.installed $(VENV)/.dev
	@status=0; $(LANES) lane-rooms lane-crash lane-doors lane-export lane-wire || status=$$?; \
	$(MAKE) --no-print-directory lane-limits || status=$$?; exit $$status

# The lanes of the compiled half, each against the installed wheel.
.PHONY: compiled lane-export lane-wire lane-crash lane-rooms lane-doors lane-limits
RUN = $(VENV)/bin/python -P -m pytest $(PYTEST_ARGS) $(SLOWEST) -m '$(MARKS)'
compiled: $(VENV)/.page $(VENV)/.dev
	@$(VENV)/bin/python -P -c 'import amqpd, sys; assert amqpd.__file__.startswith(sys.prefix), amqpd.__file__'
	@echo "== pytest against the installed wheel: $$($(VENV)/bin/amqpd --version)"
	@if [ -n "$${CI:-}" ]; then $(VENV)/bin/amqpd --version | grep -q compiled || { echo "CI tests the compiled package too" >&2; exit 1; }; fi
lane-export: compiled
	@$(RUN) tests/export
lane-wire: compiled
	@$(RUN) tests/conformance interop
lane-crash: compiled
	@$(RUN) tests/crash tests/model
ROOMS := auth broker channel connection golden protocol routing storage
lane-rooms: compiled
	@$(RUN) $(addprefix tests/,$(ROOMS))
lane-doors: compiled
	@$(RUN) tests $(addprefix --ignore=tests/,$(ROOMS) conformance crash docs export limits model page)
lane-limits: compiled
	@$(RUN) tests/limits

test-interpreted: $(PLAIN)/.installed
	@cd / && '$(CURDIR)/$(PLAIN)/bin/amqpd' --version | grep -q interpreted
	@echo "== pytest against the sources: $$($(PLAIN)/bin/amqpd --version)"
	$(PLAIN)/bin/python -P -m pytest $(INTERPRETED_TESTS) -m "not compiled_only and $(MARKS)" $(PYTEST_ARGS) $(SLOWEST)

.PHONY: bench-export
# A log of a million records, decoded and exported, and what an export costs the broker beside it: the tables of
# storage/export/README.md. BENCH_ARGS="--records 100000"
bench-export: $(VENV)/.installed $(VENV)/.dev
	$(VENV)/bin/python -P -m amqpd.storage.export.bench $(BENCH_ARGS)
	$(VENV)/bin/python -m interop.bench.export

lint: $(PLAIN)/.installed
	$(PLAIN)/bin/ruff check .
	$(PLAIN)/bin/mypy -p amqpd
	$(PLAIN)/bin/mypy setup.py
	@$(MAKE) --no-print-directory check-page

# The page's types, against the API as these sources have it. Where there is no Node.js: passed over, and said so; an error with
# TEST_REQUIRE_PAGE=1.
check-page: $(PLAIN)/.installed
	@$(PLAIN)/bin/python setup.py --quiet build_page --check || { [ $$? = 3 ] && [ -z "$${TEST_REQUIRE_PAGE:-}" ]; }

# The page beside its sources, for a broker that runs from them, and into the installed package where there is one: it is seen at the
# next look.
INSTALLED_PAGE = "$$($(VENV)/bin/python -P -c 'import amqpd.management as m; print(m.__path__[0])')/page/dist"
page: $(VENV)/.tools
	@$(VENV)/bin/python setup.py --quiet build_page
	@if [ -e $(VENV)/.installed ]; then $(VENV)/bin/python setup.py --quiet build_page --into $(INSTALLED_PAGE); fi

build: $(VENV)/.tools
	@$(call TOLD,wheel --no-deps --no-build-isolation --wheel-dir dist .)
	@ls -l dist

# amqpd beside RabbitMQ, the interpreted one too: interop/bench/README.md. BENCH_ARGS="--scenarios S1,S3 --rounds 1"
# The guard: fails when a message of S1 or S3 costs more than 15 % above its record; BENCH_ARGS=--record takes today's cost.
BENCH_ARGS ?=
.PHONY: bench bench-guard
bench: $(VENV)/.installed $(PLAIN)/.installed
	$(VENV)/bin/python -m interop.bench --interpreted $(PLAIN)/bin/python $(BENCH_ARGS)

bench-guard: $(VENV)/.installed
	$(VENV)/bin/python -m interop.bench.guard $(BENCH_ARGS)

# The installed wheel and its page: `python -m interop.bench.page` would take the sources, which stand here, as they are.
.PHONY: bench-page
bench-page: browser $(VENV)/.page $(VENV)/.browser
	$(VENV)/bin/python -P -c 'import runpy, sys; sys.path.append("."); runpy.run_module("interop.bench.page", run_name="__main__")' $(BENCH_ARGS)

# Three nodes over three brokers of Kafka beside three nodes of RabbitMQ with quorum queues: ten minutes.
.PHONY: bench-cluster
bench-cluster: $(VENV)/.installed $(VENV)/.cluster $(VENV)/kafka/.ready
	$(VENV)/bin/python -m interop.bench.cluster $(BENCH_ARGS)

# Conversations with RabbitMQ, put down by `make compare-record` (a minute or ten), held with ours: interop/compare/README.md.
COMPARE_ARGS ?=
.PHONY: compare compare-record
compare: $(VENV)/.installed $(VENV)/.dev
	$(VENV)/bin/python -m interop.compare $(COMPARE_ARGS)

compare-record: $(VENV)/.installed $(VENV)/.dev
	$(VENV)/bin/python -m interop.compare --record $(COMPARE_ARGS)

# Beside a live RabbitMQ: Debian's package, a node of its own with folder and ports of its own, never the system's service.
# With TEST_REQUIRE_RABBITMQ=1 root installs the package where it is missing; else the tests are skipped there, and say so.
.PHONY: test-peer
test-peer: $(VENV)/.installed $(VENV)/.dev
	@if [ -n "$${TEST_REQUIRE_RABBITMQ:-}" ]; then $(VENV)/bin/python -c \
		'import sys; from interop.bench.rabbitmq import find_or_install; sys.exit(find_or_install(print) or None)'; fi
	$(VENV)/bin/python -P -m pytest $(PYTEST_ARGS) $(SLOWEST) -m peer interop

# The documentation: a site that is built without a warning, and every block of its pages done as it stands (tests/docs).
.PHONY: docs test-docs
docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m interop.manual.site
	@echo "$(CURDIR)/docs/site/index.html"

test-docs: $(VENV)/.installed $(VENV)/.dev $(VENV)/.docs
	$(VENV)/bin/python -P -m pytest $(PYTEST_ARGS) $(SLOWEST) tests/docs

# The web page in a browser, Debian's Chromium, with pages of each kind of user, axe, a broker that dies (tests/page). Where there is no
# Chromium, or the page could not be built, it is skipped and says why; with TEST_REQUIRE_PAGE=1 that is a failure, and root
# installs the browser. The pictures of the documentation are made by the same tests.
.PHONY: test-page pictures browser
browser:
	@if ! command -v chromium-headless-shell >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ -n "$${TEST_REQUIRE_PAGE:-}" ]; then \
		export DEBIAN_FRONTEND=noninteractive; apt-get update -qq; \
		apt-get install -qq -y --no-install-recommends chromium-headless-shell fonts-dejavu-core || \
		apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core; fi
test-page: browser $(VENV)/.page $(VENV)/.dev $(VENV)/.browser
	@started=$$SECONDS; status=0; \
	$(MAKE) --no-print-directory --keep-going --output-sync=target -j3 page-queues page-others page-waits || status=$$?; \
	echo "== make test-page took $$((SECONDS - started)) s; 180 is what it may take"; exit $$status

# Three parts at once, each with brokers and a browser of its own: two that keep a processor busy, and what waits for brokers that die
# and for pages that ask every few seconds.
.PHONY: page-queues page-others page-waits
PAGE_QUEUES := $(addprefix tests/page/test_,queue_pages.py many_queues.py looks.py topology_page.py first_paint.py)
PAGE_WAITS := $(addprefix tests/page/test_,requests.py broker_away.py three_nodes.py)
PAGE_RUN = $(VENV)/bin/python -P -m pytest $(PYTEST_ARGS) $(SLOWEST)
page-queues:
	@$(PAGE_RUN) $(PAGE_QUEUES)
page-waits:
	@$(PAGE_RUN) $(PAGE_WAITS)
page-others:
	@$(PAGE_RUN) tests/page $(addprefix --ignore=,$(PAGE_QUEUES) $(PAGE_WAITS))

pictures: browser $(VENV)/.page $(VENV)/.dev $(VENV)/.browser
	TEST_PICTURES='$(CURDIR)/docs/pictures' $(VENV)/bin/python -P -m pytest tests/page/test_pictures.py

# Dashboards and alert rules against a real Prometheus: Debian's package, installed when this is root. Part of `make test`, which
# passes them over where there is none.
.PHONY: check-metrics
check-metrics: $(VENV)/.installed $(VENV)/.dev
	@if ! command -v promtool >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends prometheus; fi
	$(VENV)/bin/python -P -m pytest $(PYTEST_ARGS) tests/prometheus

# Crashes and faults for minutes, which CI runs after `make test`, and clients that are relayed at length. Crash states and damage want
# a processor, the others wait for disks and starts most of the time: two lanes at once. Then nodes over Kafka.
.PHONY: test-long long-states long-crash long-exports
LONG = $(VENV)/bin/python -P -m pytest $(PYTEST_ARGS) -m ci_long -s --durations=0 --durations-min=1
STATES := $(addprefix tests/crash/test_,states.py corruption.py)
test-long: $(VENV)/.installed $(VENV)/.dev
	@status=0; $(MAKE) --no-print-directory --keep-going --output-sync=target -j2 long-states long-crash long-exports || status=$$?; \
	$(MAKE) --no-print-directory test-cluster || status=$$?; exit $$status
long-states:
	@$(LONG) $(STATES)
long-crash:
	@$(LONG) tests/crash $(addprefix --ignore=,$(STATES))
long-exports:
	@$(LONG) tests/export tests/relay

# Nodes over Kafka (make kafka), the short form of cluster-test: six minutes at most. Nearly all of it waits for what Kafka gives a
# node or a broker before it is missed: two lanes at once; hosts of their own are all in one of them.
.PHONY: test-cluster cluster-hosts cluster-others
CLUSTER_HOSTS := $(addprefix tests/cluster/test_,nodes_history.py nodes_zombies.py nodes_cut.py nodes_brokers.py hosts.py nodes_kills.py nodes_faults.py \
	nodes_queues.py run.py)
test-cluster: $(VENV)/.installed $(VENV)/.dev
	@started=$$SECONDS; status=0; \
	$(MAKE) --no-print-directory --keep-going --output-sync=target -j2 cluster-hosts cluster-others || status=$$?; \
	echo "== make test-cluster took $$((SECONDS - started)) s; 360 is what it may take"; exit $$status
cluster-hosts:
	@$(LONG) $(CLUSTER_HOSTS)
cluster-others:
	@$(LONG) tests/cluster $(addprefix --ignore=,$(CLUSTER_HOSTS))

# Nodes over Kafka at length: 50 kills of nodes and of brokers, each promise with a fault planted that must be seen; and a history of every
# message over 100 and 50 more, 50 cut links (TEST_CLUSTER_KILLS, _BROKER_KILLS, _CUTS, _STOPS, _CLOCKS, _SEED set others). Three hours; wants
# to be root, for hosts of their own. CLUSTER_ARGS="-k kill" takes some of it; TEST_CLUSTER_FIGURES names a file for its figures.
CLUSTER_ARGS ?=
.PHONY: cluster-test
cluster-test: $(VENV)/.installed $(VENV)/.dev $(VENV)/kafka/.ready $(VENV)/kafka-spark/.ready
	TEST_CLUSTER_LONG=1 $(VENV)/bin/python -P -m pytest tests/cluster -m "on_demand or ci_long" --timeout 0 -s $(CLUSTER_ARGS)

# Crashes and faults at length: 1,000 kills, 500 power cuts, histories over 500 and 100 more, 10 million crash states, 100,000
# flips, every call of a script.
# TEST_CRASH_STATES, _LANES, _FLIPS, _CUTS, _CYCLES, _SEED set others; TORTURE_ARGS="-k millions" takes one of them.
TORTURE_ARGS ?=
.PHONY: torture
torture: $(VENV)/.installed $(VENV)/.dev
	TEST_CRASH_STATES=$${TEST_CRASH_STATES:-10000000} \
		$(VENV)/bin/python -P -m pytest tests/crash -m "on_demand or ci_long" --timeout 0 -s $(TORTURE_ARGS)

clean:
	rm -rf $(VENV) $(PLAIN) $(PAGE)/dist $(PAGE)/node_modules dist build docs/site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find amqpd routing storage cli tests interop -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created $(PLAIN)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "amqpd needs Python 3.11 or later")'
	@$(PYTHON) -m venv $(@D) || { echo "no virtual environment could be made; on Debian: apt install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.tools: $(VENV)/.created $(SETUP)
	@echo "downloading what amqpd and its build need into $(VENV)"
	@$(VENV)/bin/python -c '$(REQUIREMENTS)' > $(VENV)/requirements.txt
	@$(VENV)/bin/pip install $(PIP_FLAGS) -r $(VENV)/requirements.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.tools | $(VENV)/.installed
	@echo "downloading what the tests need into $(VENV), Spark and a Java among it: 1 GB on disk"
	@$(VENV)/bin/python -c '$(REQUIREMENTS)' test spark deploy > $(VENV)/requirements-test.txt
	@$(VENV)/bin/pip install $(PIP_FLAGS) -r $(VENV)/requirements-test.txt
	@touch $@

$(VENV)/.browser: $(VENV)/.tools | $(VENV)/.installed
	@echo "downloading what drives a browser into $(VENV): 130 MB on disk"
	@$(VENV)/bin/python -c '$(REQUIREMENTS)' page > $(VENV)/requirements-page.txt
	@$(VENV)/bin/pip install $(PIP_FLAGS) -r $(VENV)/requirements-page.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.tools
	@echo "downloading what the documentation needs into $(VENV)"
	@$(VENV)/bin/python -c '$(REQUIREMENTS)' docs > $(VENV)/requirements-docs.txt
	@$(VENV)/bin/pip install $(PIP_FLAGS) -r $(VENV)/requirements-docs.txt
	@touch $@

$(VENV)/.cluster: $(VENV)/.tools | $(VENV)/.installed
	@$(VENV)/bin/python -c '$(REQUIREMENTS)' cluster test | grep -E '^(aiokafka|kafka-python|pytest)>' > $(VENV)/requirements-cluster.txt
	@$(VENV)/bin/pip install $(PIP_FLAGS) -r $(VENV)/requirements-cluster.txt
	@touch $@

$(VENV)/.spark: $(VENV)/.tools | $(VENV)/.installed
	@echo "downloading Spark and a Java into $(VENV): 750 MB on disk"
	@$(VENV)/bin/python -c '$(REQUIREMENTS)' spark > $(VENV)/requirements-spark.txt
	@$(VENV)/bin/pip install $(PIP_FLAGS) -r $(VENV)/requirements-spark.txt
	@touch $@

$(VENV)/.installed: $(VENV)/.tools $(SOURCES)
	@if [ "$${BUILD_BEHIND:-}" != here ] && [ -e $(VENV)/.building ] && ! flock -n $(VENV)/.building true; then \
		echo "waiting for the build that make run has left at work"; flock $(VENV)/.building true; fi
	@echo "building amqpd into $(VENV): two minutes on a quiet machine, four on a busy one"
	@$(call TOLD,install --no-deps --no-build-isolation --force-reinstall .)
	@$(VENV)/bin/amqpd --version
	@if $(VENV)/bin/amqpd --version | grep -q interpreted; then echo "amqpd runs INTERPRETED, several times slower: no C compiler or" \
		"no Python.h was found. On Debian: apt install gcc python3-dev, then make clean"; fi
	@touch $@

# The page of the installed package anew, where no more than that has changed.
$(VENV)/.page: $(VENV)/.installed $(PAGE_SOURCES)
	@$(VENV)/bin/python setup.py --quiet build_page --into $(INSTALLED_PAGE) || [ $$? = 3 ]
	@touch $@

$(PLAIN)/.installed: $(PLAIN)/.created $(SETUP)
	@echo "downloading what the interpreted tests need into $(PLAIN)"
	@$(PLAIN)/bin/python -c '$(REQUIREMENTS)' test dev > $(PLAIN)/requirements.txt
	@$(PLAIN)/bin/pip install $(PIP_FLAGS) -r $(PLAIN)/requirements.txt
	@$(PLAIN)/bin/pip install $(PIP_FLAGS) --no-deps --no-build-isolation --editable .
	@touch $@
