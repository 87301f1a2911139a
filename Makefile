# Everything there is to do with levee. "make" alone lists it.

# The tools, pinned; go run builds them once and keeps them.
LINT      := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
BENCHSTAT := go run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da

# The library in the root, and the modules below it that users need not download.
MODULES := . $(patsubst %/go.mod,%,$(shell find . -mindepth 2 -name go.mod -not -path '*/testdata/*' | sort))

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c

# runtests takes command lines of go test, see internal/runtests.
runtests := go run ./internal/runtests

# Tests that the race detector makes meaningless or slow, such as those that count allocations,
# skip if race.Detector, and run once more without it. levee_failpoint is for tests that stop the
# code between its steps, see internal/failpoint; the run without the race detector is without it.
withrace    := -race -tags=levee_failpoint
withoutrace := -p=2 -vet=off -timeout=1h -with=Detector

# What a user of this file may set, as in "make fuzz FUZZTIME=10m".
PKG      ?= ./...
RUN      ?= .
BENCH    ?= .
COUNT    ?= 1
FUZZTIME ?= 60s
SOAK     ?= 30m
ARGS     ?=

# A process with the race detector sleeps for a second when it ends, unless told otherwise.
export GORACE ?= atexit_sleep_ms=10

# Which Redis the tests start: "make test REDIS_SERVER=/usr/bin/valkey-server".
REDIS_SERVER ?= $(or $(LEVEE_REDIS_SERVER),redis-server)
export LEVEE_REDIS_SERVER := $(REDIS_SERVER)

# The packages that talk to a Redis.
CORE := ./internal/redisconn ./internal/clients ./internal/security ./internal/fleet ./mutexrebuild ./lock ./lock/redlock ./bloom ./cache

.DEFAULT_GOAL := help
.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Tests need a redis-server and start it themselves. The long ones, and the long"
	@echo "versions of others, run with LEVEE_LONG=1, which long, chaos and soak set; a"
	@echo "duration in its place, LEVEE_LONG=8h, says how long those that go on and on take."

.PHONY: redis
redis: ## Install redis-server if it is missing (apt-get or brew)
	@bash .ci/install-redis

# Two packages of the library at a time, in each up to six tests that have servers of their own,
# and beside them one package of another module: most wait more than they compute, and more at a
# time would take each other's processors. The longest begin first. -vet=all makes go test check
# all that go vet checks.
.PHONY: test
test: redis ## Vet and test all modules with the race detector
	@$(runtests) -times=bin/times.tsv '$(withrace) -p=2 -parallel=6 -vet=all -timeout=1h ./cache ./lock ./bloom ./internal/linear ./...' \
		$(patsubst %,'-C=% $(withrace) -p=1 -parallel=6 -vet=all -timeout=1h ./...',$(filter-out .,$(MODULES))) '$(withoutrace)'

.PHONY: times
times: ## Where the last make test has spent its time, for docs/internals/tests.md
	@$(runtests) -table=bin/times.tsv

.PHONY: check
check: ## Gofmt, vet, lint and the quick tests of what has changed, within a minute
	@LINT='$(LINT)' bash .ci/check

.PHONY: servers
servers: redis ## The tests of what talks to Redis, on each server that Debian has (PKG=)
	@bash .ci/get-servers bin/servers
	@for server in $(REDIS_SERVER) $$(find $(CURDIR)/bin/servers -maxdepth 1 -type f -perm -1); do \
		echo "== $$($$server --version)"; \
		LEVEE_REDIS_SERVER=$$server $(runtests) '-p=2 $(if $(filter-out ./...,$(PKG)),$(PKG),$(CORE))' || failed=1; \
	done; exit $${failed:-0}

.PHONY: databases
databases: redis ## The tests of the change feeds, on each PostgreSQL, MariaDB and MySQL that Debian has
	@bash .ci/get-databases bin/databases
	@for programs in $$(find $(CURDIR)/bin/databases -mindepth 1 -maxdepth 1 -type d ! -name '.*'); do \
		echo "== $${programs##*/}"; \
		case $$programs in *postgresql*) feed=pgfeed ;; *) feed=mysqlfeed ;; esac; \
		PATH=$$programs:$$PATH $(runtests) "-C=cache/$$feed -p=1 ./..." '-C=cache/outbox -p=1 ./...' || failed=1; \
	done; exit $${failed:-0}

.PHONY: lint
lint: ## Run the linters of .golangci.yml on all modules
	@for module in $(MODULES); do \
		echo "-- $$module"; \
		(cd $$module && $(LINT) run --config $(CURDIR)/.golangci.yml ./...) || failed=1; \
	done; exit $${failed:-0}

# Systems that no test runs on here, and a small one that the tests of what needs no server do run on.
# Vet type-checks the tests too.
PLATFORMS := linux/386 linux/arm linux/arm64 linux/s390x windows/amd64 darwin/arm64 freebsd/amd64

.PHONY: platforms
platforms: ## Build and vet the library for other systems, and run tests in 32 bits
	@for platform in $(PLATFORMS); do \
		echo "-- $$platform"; \
		CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} go vet ./... || failed=1; \
	done; exit $${failed:-0}
	@bash .ci/try-32-bits

.PHONY: long
long: redis ## All tests at their long size, but for the soak (PKG=, RUN=)
	LEVEE_LONG=1 $(runtests) '$(withrace) -timeout=2h -run=$(RUN) -skip=^TestSoak $(PKG)'

.PHONY: mutants
mutants: redis ## The code without each safeguard in turn: make test builds one of each table, this all
	LEVEE_MUTANTS=all $(runtests) '-p=1 -tags=levee_failpoint -vet=off -timeout=2h -with=mutant'

# A pattern that matches no test is an error, as it is of runtests, which would print the
# output of these long tests only at the end.
matches = go test -race -list '$(1)' $(PKG) | grep '^Test' || { echo "$(PKG) has no test that matches $(1)"; exit 1; }

.PHONY: chaos
chaos: redis ## The tests named TestChaos…: servers and processes killed under load (PKG=)
	@$(call matches,^TestChaos)
	LEVEE_LONG=1 go test -race -timeout 2h -v -run '^TestChaos' $(PKG)

.PHONY: soak
soak: redis ## The tests named TestSoak…: hours of mixed load and faults (PKG=, SOAK=30m)
	@$(call matches,^TestSoak)
	LEVEE_LONG=$(SOAK) go test -race -timeout 0 -v -run '^TestSoak' $(PKG)

.PHONY: fuzz
fuzz: redis ## Every fuzz target in turn, of all modules (PKG=, FUZZTIME=60s each)
	@for module in $(if $(filter ./...,$(PKG)),$(MODULES),.); do \
		for pkg in $$(go list -C $$module $(PKG)); do \
			for target in $$(go test -C $$module -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
				echo "-- $$pkg $$target"; \
				go test -C $$module -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg; \
			done; \
		done; \
	done

.PHONY: bench
bench: redis ## levee beside its peers, two minutes (ARGS="-work hit-bytes,arrivals -rounds 5")
	@go run -C internal/bench -tags gozero . $(or $(ARGS),-short)

.PHONY: counts
counts: ## How large the library is: lines and public identifiers by package, words
	@go run ./internal/counts

.PHONY: micro
micro: redis ## The packages' own benchmarks, with allocations (PKG=, BENCH=pattern, COUNT=1)
	@mkdir -p bin
	go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) $(PKG) | tee bin/bench.txt
	@$(BENCHSTAT) bin/bench.txt

.PHONY: cover
cover: redis ## Test coverage by function, the total last (PKG=)
	@mkdir -p bin
	go test -coverpkg=./... -coverprofile=bin/cover.out $(PKG)
	go tool cover -func=bin/cover.out | tail -40

.PHONY: shop
shop: ## A shop with and without levee, and a live page to break both (ARGS="-redis 127.0.0.1:6379")
	go run -C examples ./shop $(ARGS)

.PHONY: pictures
pictures: ## The pictures of the docs, from the shop, in a Chromium
	@bash .ci/install-chromium
	LEVEE_SCREENSHOTS=$(CURDIR)/docs go test -C examples -count=1 -run '^TestScreenshots$$' ./shop

.PHONY: drill
drill: ## The three floods, without and with levee (ARGS="-redis 127.0.0.1:6379")
	go run -C examples ./drill $(ARGS)

.PHONY: modules
modules:
	@echo $(MODULES)
