# test and lint, and most programs that tests build, compile everything in the same way, and so once. nomsgpack leaves out a
# codec of gin that takes longest to compile, and that nothing here uses.
test lint: export CGO_ENABLED = 1
test lint: export GOFLAGS = -race -tags=nomsgpack

# test installs what is missing and tests every module of the workspace. GORACE saves each program a second at its end. lint
# vets, and compiles the packages without tests. Two packages at a time, and four tests of each, are enough: with more, tests
# fail for want of processor time. On a busy machine, a package takes longer than the ten minutes that Go allows by default.
# pgxstore is first because it mostly waits: other packages run meanwhile. If it were last, none would. The proofs are
# for prove: their processes are built without the race detector.
.PHONY: test
test: export GORACE = atexit_sleep_ms=0
test:
	.ci/setup
	packages=$$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' work) && \
		go test -p=2 -vet=off -shuffle=on -parallel=4 -timeout=1h \
		$$(echo "$$packages" | grep '/pgxstore$$') $$(echo "$$packages" | grep -v '/internal/proof/\|/pgxstore$$')
	.ci/untested "valkey-server (see .ci/redis)"

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
