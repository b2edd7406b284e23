# These targets compile with the same flags, as do most programs that tests build. So each package is compiled once, which
# is half of their time. nomsgpack leaves out a codec of gin: it compiles longest, and nothing here uses it. dwarf=false
# leaves out what only debuggers read. GOGC=200 saves a sixth of the time to compile, and takes more memory.
test redis lint: export CGO_ENABLED = 1
test redis lint: export GOFLAGS = -race -tags=nomsgpack -gcflags=all=-dwarf=false
test redis lint: export GOGC = 200

# test installs what is missing and tests every module of the workspace. GORACE saves each program a second at its end. lint
# vets, and compiles the packages without tests. Two packages at a time, and four tests of each, are enough: with more, tests
# fail for want of processor time. On a busy machine, a package takes longer than the ten minutes that Go allows by default.
# pgxstore is first because it mostly waits: other packages run meanwhile. If it were last, none would. The proofs are
# for prove: their processes are built without the race detector.
#
# If nothing has changed, go test takes the results from its cache. In CI it does not: a shuffled run is not cached. The
# cache does not see which servers there are, the files of other modules, nor what tests compile. So the command has a sum
# of all of it, in -skip, as the name of a test that does not exist. If one file changes, all tests run.
.PHONY: test
test: export GORACE = atexit_sleep_ms=0
test:
	.ci/setup
	packages=$$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' work) && \
		sum=$$({ .ci/servers; find . -name .git -prune -o -type f -exec cksum {} +; } | sort | cksum | cut -d' ' -f1) && \
		go test -p=2 -vet=off $(if $(IDEMPOTENCY_CI),-shuffle=on,-skip=^sum$$sum\$$) -parallel=4 -timeout=1h \
		$$(echo "$$packages" | grep '/pgxstore$$') $$(echo "$$packages" | grep -v '/internal/proof/\|/pgxstore$$')
	.ci/untested "valkey-server (see .ci/redis)"

# redis tests the root's Redis store on the server that .ci/redis names.
.PHONY: redis
redis:
	go test -vet=off -shuffle=on -parallel=4 -timeout=1h -run=Redis .

# prove runs what takes long: all proofs at full size, fuzzing, mutants, soak.
.PHONY: prove
prove:
	.ci/setup
	go run ./internal/proof/cmd/prove
	.ci/untested

.PHONY: lint
lint:
	.ci/lint

.PHONY: bench
bench:
	go test -run='^$$' -bench=. -benchmem work
