# These targets compile with the same flags, as do most programs that tests build: a package is compiled once for all of them,
# which saves half of the time. nomsgpack leaves out a codec of gin: it compiles longest, and nothing here uses it. dwarf=false
# leaves out what only debuggers read. GOGC=200 saves a sixth of the time to compile, and takes more memory.
test redis lint: export CGO_ENABLED = 1
test redis lint: export GOFLAGS = -race -tags=nomsgpack -gcflags=all=-dwarf=false
cover: export GOFLAGS = -tags=nomsgpack
test redis lint cover: export GOGC = 200

# test installs what is missing and tests every module of the workspace. lint vets, and compiles the packages without tests.
# Three packages at a time, and three tests of each, keep two processors busy. With more, tests may fail for want of
# processor time. On a busy machine, a package takes longer than the ten minutes that Go allows by default. pgxstore is
# first because it mostly waits: other packages run meanwhile. If it were last, none would. The proofs are for prove: their
# processes are built without the race detector. GORACE: without it, each program under the race detector sleeps for a
# second at its end.
#
# If nothing has changed, go test takes the results from its cache. In CI it does not: a shuffled run is not cached. The
# cache does not see which servers there are, the files of other modules, nor what tests compile. So a sum of all of it is
# part of the command, in -skip, as a name that no test has. If one file changes, all tests run.
#
# Servers have their files in /dev/shm if it is large: they take a GB. A PostgreSQL has a thousand files, and ext4 without a
# journal is slow to make files where many were deleted in the last minutes. make prove and make bench use the disk.
test redis cover: export IDEMPOTENCY_SERVER_FILES := $(shell df -Pk /dev/shm 2>/dev/null | \
	awk '$$6 == "/dev/shm" && $$2 > 6e6 { print $$6 }')
.PHONY: test
test: export GORACE = atexit_sleep_ms=0
test:
	.ci/setup
	packages=$$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' work) && \
		sum=$$({ .ci/servers; find . -name .git -prune -o -type f -exec cksum {} +; } | sort | cksum | cut -d' ' -f1) && \
		go test -p=3 -vet=off $(if $(IDEMPOTENCY_CI),-shuffle=on,-skip=^sum$$sum\$$) -parallel=3 -timeout=1h \
		$$(echo "$$packages" | grep '/pgxstore$$') $$(echo "$$packages" | grep -v '/proof/guarantees/\|/pgxstore$$')
	.ci/untested "valkey-server (see .ci/redis)"

# redis tests the root's Redis store on the server that .ci/redis names.
.PHONY: redis
redis:
	go test -vet=off -shuffle=on -parallel=4 -timeout=1h -run=Redis .

# prove runs what takes long: all proofs at full size, fuzzing, mutants, soak.
.PHONY: prove
prove:
	.ci/setup
	go run ./proof/guarantees/cmd/prove
	.ci/untested

# cover measures the statements that the tests of each published package run, and writes the badge of the README.
.PHONY: cover
cover:
	.ci/setup
	.ci/cover

.PHONY: lint
lint:
	.ci/lint

.PHONY: bench
bench:
	go test -run='^$$' -bench=. -benchmem work

# site builds the pages as a static site in docs/site/dist, and fails if a link between them leads nowhere.
.PHONY: site
site:
	cd docs/site && npm ci --no-audit --no-fund && npm run build
