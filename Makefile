# Each target does its own set-up. `make test` is what has to pass.
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
BELLJAR := $(TARGET)/release/belljar
# What scripts/setup makes for the Python package.
VENV := $(TARGET)/python
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
.PHONY: build tests test check kernels python wheel chaos soak schema fuzz contract lint attack attack-control docs guest test-v2 test-v2-tests test-v2-attacks musl test-musl test-docker bench audit dev

## build: the optimised binary
build:
	cargo build --release --locked

## tests: all test programs and examples, looked at by clippy as they are compiled
tests:
	scripts/setup lint
	scripts/tests run --no-run

## test: everything: lint, build, unit and integration tests, attacks, and the same on cgroup v2 in a guest; side by side where that disturbs nobody
test:
	scripts/test

## check: unit and integration tests, the latter against the optimised binary
# The tests themselves are built without optimisation: with it, each test program would take minutes to link.
check: build
	scripts/setup lint runtimes images
	# Most of them wait for something most of the time: more at a time than there are processors.
	BELLJAR_BIN=$(BELLJAR) scripts/tests run --test-threads $$((2 * $$(nproc))) -E 'not test(/suite::docker::/)'
	/usr/bin/python3 bench/order.py --belljar $(BELLJAR) --check

## contract: what any backend must do, through HTTP: make contract BACKEND=docker. `make check` does it with the native one
contract: build
	scripts/setup lint runtimes
	BELLJAR_BIN=$(BELLJAR) $(if $(BACKEND),BELLJAR_TEST_BACKEND=$(BACKEND)) scripts/tests run serve_

## kernels: what runs inside live sandboxes, each by itself
kernels: export PYTHONDONTWRITEBYTECODE = 1
kernels:
	scripts/setup kernels
	printf '%s\n' python node shell | xargs -P 3 -I {} /usr/bin/python3 -m unittest discover -s kernels/{}/tests

## wheel: the Python package with the optimised binary in it, in target/wheels
wheel: build
	scripts/setup python
	rm -rf $(TARGET)/wheels
	cd sdk/python && CARGO_TARGET_DIR=$(TARGET) $(VENV)/bin/maturin build --quiet --release --locked --out $(TARGET)/wheels

## python: the Python package: style, types, tests, and its wheel in an environment that has nothing else
python: wheel
	scripts/setup runtimes kernels python
	cd sdk/python && $(VENV)/bin/ruff check --quiet . && $(VENV)/bin/ruff format --quiet --check . && $(VENV)/bin/mypy
	# They wait most of the time: more at a time than there are processors.
	BELLJAR_BIN=$(BELLJAR) BELLJAR_WHEEL=$$(ls $(TARGET)/wheels/*.whl) $(VENV)/bin/python -m pytest -q -n $$((2 * $$(nproc))) --dist loadfile --reruns 1 -rR sdk/python/tests

## chaos: kills parts of a busy engine at random moments, and looks for anything that is left
chaos: build tests
	scripts/setup runtimes
	/usr/bin/python3 chaos/run.py --belljar $(BELLJAR) --load $(TARGET)/debug/examples/load
	/usr/bin/python3 chaos/run.py --belljar $(BELLJAR) --load $(TARGET)/debug/examples/load --crowd 60 --kills 20
	/usr/bin/python3 chaos/daemon.py --belljar $(BELLJAR) --kills 30
	/usr/bin/python3 chaos/soak.py --belljar $(BELLJAR) --runs 1500 --minutes 6

## soak: a hundred thousand mixed runs, one in ten hostile; and the daemon killed at two hundred moments. Takes many minutes
soak: build
	scripts/setup runtimes
	/usr/bin/python3 chaos/soak.py --belljar $(BELLJAR)
	/usr/bin/python3 chaos/daemon.py --belljar $(BELLJAR)

## schema: the API holds to its own description, whatever is asked
schema: build
	scripts/setup runtimes schema
	/usr/bin/python3 tests/schema/run.py --belljar $(BELLJAR) --schemathesis $(TARGET)/schema/bin/schemathesis

## fuzz: the parsers of hostile input, for as long as FUZZ_CASES says; `make check` does it briefly
fuzz:
	PROPTEST_CASES=$(or $(FUZZ_CASES),200000) scripts/tests run fuzz_

## lint: formatting, shell and Python scripts, and clippy, with the tests that it compiles
lint: tests
	scripts/lint
	tests/lanes

## docs: the examples of README and docs, run as they are written
docs: build
	scripts/setup lint runtimes images
	/usr/bin/python3 docs/check.py --belljar $(BELLJAR)

## attack: the attack suite, as root and as an ordinary user
attack: build
	scripts/setup lint runtimes
	# The system's Python: another one may live where an ordinary user cannot go.
	/usr/bin/python3 -B -m unittest discover --quiet -s attacks/tests
	/usr/bin/python3 attacks/run.py --belljar $(BELLJAR) --modes root,rootless --layers
	scripts/setup images
	/usr/bin/python3 attacks/run.py --belljar $(BELLJAR) --modes image
	# On a daemon: what has to do with the protocol, other tenants and the API.
	/usr/bin/python3 attacks/daemon.py --belljar $(BELLJAR)

## guest: the image that the guests boot from
guest:
	scripts/setup guest
	tests/guest/build-image

## test-v2: limits, isolation, life cycle and attacks on cgroup v2, in a qemu guest
test-v2: build tests guest
	scripts/test-v2 $(BELLJAR)

## test-v2-tests, test-v2-attacks: the same in two halves, of which the second needs no test programs
test-v2-tests: build tests guest
	SUITES='root alice systemd' scripts/test-v2 $(BELLJAR)
test-v2-attacks: build guest
	SUITES='attacks-as-root attacks-as-alice control' scripts/test-v2 $(BELLJAR)

## musl: the Python that test-musl puts in an image
musl:
	scripts/setup images
	/usr/bin/python3 tests/images/musl.py --build $(TARGET)/musl

## test-musl: Python from an image whose C library is musl
test-musl: build tests musl
	/usr/bin/python3 tests/images/musl.py --belljar $(BELLJAR) --sessions $(TARGET)/debug/examples/image_sessions --build $(TARGET)/musl

## test-docker: the docker backend, the daemon's contract on it, and the attacks that make sense in a container
test-docker: build
	scripts/setup lint docker python
	BELLJAR_BIN=$(BELLJAR) scripts/test-docker scripts/contract-docker

## attack-control: every attack with nothing around it, in a guest that is thrown away
attack-control: build guest
	SUITES=control CONTROL= TIMEOUT=2400 scripts/test-v2 $(BELLJAR)

## bench: against the bare toolchains and against other sandboxes
bench: build
	scripts/setup runtimes kernels bench
	/usr/bin/python3 bench/run.py --belljar $(BELLJAR)
	scripts/setup images
	cargo build --release --locked --package belljar --example image_sessions
	/usr/bin/python3 bench/images.py --belljar $(BELLJAR) --sessions $(TARGET)/release/examples/image_sessions
	cargo build --release --locked --package belljar --example sessions
	/usr/bin/python3 bench/sessions.py --sessions $(TARGET)/release/examples/sessions
	scripts/setup docker
	scripts/test-docker /usr/bin/python3 bench/docker.py --belljar $(BELLJAR)
	/usr/bin/python3 bench/daemon.py --belljar $(BELLJAR)
	/usr/bin/python3 bench/network.py --belljar $(BELLJAR)
	scripts/setup python
	$(VENV)/bin/python bench/python.py --belljar $(BELLJAR)

## audit: licences, advisories and sources of the dependencies (the advisories need the internet)
audit:
	cargo deny --version >/dev/null 2>&1 || cargo install cargo-deny --locked
	cargo deny check

## dev: a quick build, ready to try
dev:
	scripts/setup lint runtimes
	cargo build --locked
	$(TARGET)/debug/belljar runtimes
