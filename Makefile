# test installs what is missing and tests every module of the workspace. GOFLAGS has programs that tests build use what is
# compiled for the tests. GORACE saves each of them a second at its end. make lint vets. Two packages at a time, and four
# tests of each, are enough: with more, tests fail for want of processor time. On a busy machine, a package takes longer than
# the ten minutes that Go allows by default. The proofs are for prove: their processes are built without the race detector.
.PHONY: test
test:
	.ci/setup
	packages=$$(go list work) && CGO_ENABLED=1 GOFLAGS=-race GORACE=atexit_sleep_ms=0 \
		go test -p=2 -vet=off -shuffle=on -parallel=4 -timeout=1h $$(echo "$$packages" | grep -v /internal/proof/)
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
