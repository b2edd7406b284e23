# test installs what is missing and tests every module of the workspace.
.PHONY: test
test:
	.ci/setup
	go test -race -shuffle=on work

.PHONY: lint
lint:
	.ci/lint

.PHONY: bench
bench:
	go test -run='^$$' -bench=. -benchmem work
