# What a developer runs; `make help` lists it. .ci/run runs all of it but stress, soak, interop and fuzz
# (CI runs the same tests once with the race detector, and the seeds of each fuzz target).

GO ?= go
CORE := ./outcome ./proctree ./internal/wire ./internal/supervisor ./adapter
TARGETS ?= linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 freebsd/amd64
COUNT ?= 50
FUZZTIME ?= 30s
DURATION ?= 10m
BENCHTIME ?= 1s

.PHONY: help check fmt vet lint tidy test race stress soak cross bench fuzz interop module

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "%-8s %s\n", $$1, $$2 }'

check: fmt vet lint tidy ## the one gate before a merge: fmt, vet, lint, tidy, tests with the race detector
	$(GO) test -race ./...

fmt: ## fail if gofmt would change a file
	@files=$$(gofmt -l .) && if [ -n "$$files" ]; then echo "gofmt would change:"; echo "$$files"; exit 1; fi

vet: ## go vet
	$(GO) vet ./...

# The files of macOS are checked from here too. What only Linux uses would count as unused there.
lint: ## staticcheck, for this system and for macOS
	staticcheck=$$($(GO) -C tools tool -n staticcheck) && $$staticcheck ./... && \
	GOOS=darwin CGO_ENABLED=0 $$staticcheck -checks inherit,-U1000 ./...

tidy: ## fail if go mod tidy would change a go.mod or go.sum
	$(GO) mod tidy -diff
	$(GO) -C tools mod tidy -diff

test: ## the tests
	$(GO) test ./...

# Not those whose point is what other processes do: they take long, and race no goroutines of ours.
race: ## the tests of the core packages with the race detector, the short ones
	$(GO) test -race -short -timeout 10m -skip '^Test(Callers?(With|That|Was).*|Builds|WithoutCurfew|Promise|LibraryInACProgram|ReusedPIDs|PIDIsTakenOver|Soak|AllAtOnce|Bomb|Traced|Wrappers|.*Member|.*AnotherNamespace|BothLostAndEnvironmentWiped|NothingIsLeftOfUs)$$' $(CORE)

stress: ## the process code COUNT times over on 1, 2 and 8 threads (before merging what touches it)
	$(GO) test -race -count=$(COUNT) -cpu=1,2,8 -timeout 90m ./proctree ./internal/supervisor

soak: ## one caller that runs everything for DURATION, and a table of what was seen (the tests do it for seconds)
	CURFEW_SOAK=$(DURATION) $(GO) test -count=1 -timeout 0 -run '^TestSoak$$' -v ./adapter

interop: ## the MCP SDKs of others over sessions: a module of its own, which gets the SDK, and a package from npm
	cd interop && $(GO) mod tidy -diff && $(GO) vet ./... && $(GO) test -count=1 -timeout 15m -v ./...

module: ## change the module's path to MODULE, wherever it stands
	$(GO) -C tools run ./module "$(MODULE)"

cross: ## vet every package and its tests for the other systems (TARGETS)
	@failed=; for target in $(TARGETS); do \
		echo "vet $$target"; \
		GOOS=$${target%/*} GOARCH=$${target#*/} CGO_ENABLED=0 $(GO) vet ./... || failed="$$failed $$target"; \
	done; \
	if [ -n "$$failed" ]; then echo "vet failed for:$$failed"; exit 1; fi

bench: ## the benchmarks, each for BENCHTIME
	$(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) ./adapter ./internal/journal ./bench/...

fuzz: ## each fuzz target for FUZZTIME
	@packages=$$($(GO) list ./...) || exit 1; failed=; for package in $$packages; do \
		listed=$$($(GO) test -run '^$$' -list '^Fuzz' $$package) || failed="$$failed $$package"; \
		for target in $$(echo "$$listed" | grep '^Fuzz'); do \
			echo "fuzz $$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package || failed="$$failed $$target"; \
		done; \
	done; \
	if [ -n "$$failed" ]; then echo "fuzz failed for:$$failed"; exit 1; fi
