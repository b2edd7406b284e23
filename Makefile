# test installs what is missing and tests every module of the workspace. On a busy machine, a package takes longer than
# the ten minutes that Go allows by default.
.PHONY: test
test:
	.ci/setup
	go test -race -shuffle=on -timeout=1h work

.PHONY: lint
lint:
	.ci/lint

.PHONY: bench
bench:
	go test -run='^$$' -bench=. -benchmem work
