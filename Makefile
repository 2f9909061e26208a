# make setup | run | test | quick | lint | docs | dist | bench | soak | soak-long | fuzz | screens | clean
SHELL := /bin/bash
PYTHON ?= python3
# make quick PYTHON=python3.13 VENV=.venv-3.13: the same with another Python, in an environment of its own
VENV ?= .venv
BIN := $(VENV)/bin
export VENV
.DEFAULT_GOAL := help
# else every program that the tests start compiles all that it imports, which is half of the time that they take
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup system run test quick lint unit docs dist bench soak soak-long fuzz screens lock clean

help:
	@echo "make run    set everything up and run the whole stack with sample traffic (Ctrl-C stops it)"
	@echo "make test   set everything up, lint, and run all tests"
	@echo "make quick  lint, and the tests of the inner rooms, in under a minute"
	@echo "make docs   build the site of the documents in build/site"
	@echo "make dist   build the source archive and the wheel in dist, and try both in clean environments"
	@echo "make setup | lint | bench | soak | soak-long | fuzz | screens | lock | clean"

# --- set-up -------------------------------------------------------------------------------------------------------
# Everything Python comes from the hash-checked lock file; a changed lock, project file or kernel sets up anew.
$(VENV)/ready: requirements.lock pyproject.toml setup.py $(wildcard src/lapwing/kernel/*.p[yx][xdi]) src/lapwing/net/sockets/_sockets.pyx $(wildcard src/lapwing/broker/channel/*.pxd) \
	src/lapwing/kernel/tail.py src/lapwing/broker/channel/ledger.py src/lapwing/broker/channel/subscription.py src/lapwing/broker/channel/passed_by.py src/lapwing/broker/channel/keys.py src/lapwing/broker/channel/delivery.py
	@PYTHON=$(PYTHON) scripts/setup
	@touch $@

setup: $(VENV)/ready

# Chromium for the browser tests, redis as the peer of the benchmarks, node for nsqjs: where we may install them.
system:
	@bash scripts/system-packages

run:
	@scripts/run

# --- checks -------------------------------------------------------------------------------------------------------
lint: setup
	$(BIN)/ruff check --no-cache src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/check-prose

unit:
	$(BIN)/pytest

quick: setup
	@scripts/quick

test: setup system
	$(BIN)/python -c 'from lapwing import kernel; assert kernel.COMPILED, "the compiled kernel is missing: install a C compiler"'
	@scripts/test

bench: setup
	$(BIN)/python benchmarks/kernel.py
	$(BIN)/python benchmarks/log.py
	$(BIN)/python benchmarks/nsqd.py
	$(BIN)/python benchmarks/failure.py
	$(BIN)/python benchmarks/keys.py
	$(BIN)/python benchmarks/single.py
	$(BIN)/python benchmarks/turn.py
	$(BIN)/python benchmarks/deferred.py
	$(BIN)/python benchmarks/topics.py --topics 10000
	$(BIN)/python benchmarks/lookup.py
	$(BIN)/python benchmarks/admin.py
	$(BIN)/python benchmarks/client.py
	$(BIN)/python benchmarks/spark.py
	$(BIN)/python benchmarks/pipeline.py
	$(BIN)/python benchmarks/transform.py

# SOAK=10m: how long nsqd runs under load and faults; MACHINES=200: how many are lost on each engine of a remote log;
# the reports are in build/soak. STEPS=10000000: so many steps of random histories of delivery by key; one that fails is
# printed, and runs again by its name
SOAK ?= 10m
MACHINES ?= 200
STEPS ?= 1000000
soak: setup
	$(BIN)/python tests/models/walk.py --steps $(STEPS)
	$(BIN)/python tests/faults/soak.py --time $(SOAK) --report build/soak
	rm -f build/soak/machines.md
	LAPWING_MACHINES=$(MACHINES) LAPWING_ENGINES="folder s3 postgresql" LAPWING_REPORT=build/soak/machines.md \
		$(BIN)/pytest tests/crash/test_machine_lost.py
	cat build/soak/machines.md

# the long forms of the tests; Hypothesis searches for new examples, where `make test` always tries the same ones
soak-long: setup
	LAPWING_SOAK=1 $(BIN)/pytest -m hypothesis --timeout 7200
	LAPWING_PURE=1 $(BIN)/pytest -m hypothesis tests/wire tests/log tests/broker tests/sessions
	LAPWING_SOAK=1 LAPWING_CRASH_ROUNDS=2000 LAPWING_KILLS=100 $(BIN)/pytest tests/crash tests/models tests/faults --timeout 7200
	LAPWING_SOAK=1 $(BIN)/pytest tests/spark/test_sink.py --timeout 7200
	$(BIN)/python tests/soak/spark_cluster.py
	$(BIN)/python tests/soak/spark_submit.py --only py-files
	$(BIN)/python tests/soak/pipeline_kills.py
	$(BIN)/python tests/soak/spark_one_table.py
	$(BIN)/python benchmarks/pipeline.py --soak 3600 --rate 20000

# INPUTS=10000000: so many mutated inputs per decoder, instead of a time; failures are in build/fuzz
fuzz: setup
	$(BIN)/python tests/kernel/fuzz_files.py --seconds $${SECONDS_PER_TARGET:-120}
	$(BIN)/python tests/fuzz/run.py $(if $(INPUTS),--inputs $(INPUTS),--seconds $${SECONDS_PER_TARGET:-120})
	$(BIN)/python tests/fuzz/run.py --pure --seconds $${SECONDS_PER_TARGET:-120}
	$(BIN)/python tests/fuzz/run.py --sanitize $(if $(INPUTS),--inputs $(INPUTS),--seconds $${SECONDS_PER_TARGET:-120})

# the site of the documents, in build/site; `.venv/bin/python scripts/site --serve` serves it
docs: setup
	$(BIN)/python scripts/site

# in dist: the source archive, and a wheel with the compiled kernel
dist: setup
	@scripts/dist

screens: setup
	$(BIN)/python tests/admin/screens.py

# everything; what `make run` needs first; what its pipelines need
LOCK := $(BIN)/uv pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url --python-version 3.11 --no-header
lock:
	$(LOCK) --all-extras -o requirements.lock
	$(LOCK) --no-annotate --extra admin --extra build -c requirements.lock -o requirements-run.lock
	$(LOCK) --no-annotate --extra spark -c requirements.lock -o requirements-spark.lock

clean:
	rm -rf .venv build dist *.egg-info src/*.egg-info $$(find src -name "*.c" -o -name "*.so") .pytest_cache .mypy_cache .ruff_cache
