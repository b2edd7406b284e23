package servertest

import (
	"errors"
	"os"
	"os/exec"
	"testing"
)

// Require ends the test unless err is nil. If err wraps [exec.ErrNotFound], because a program is missing on this
// machine, Require skips the test, unless the environment variable IDEMPOTENCY_CI is set. In all other cases the test
// fails.
//
// Tests that share a server start the server once, for example with [StartPostgres], and each test calls Require with
// the error.
func Require(t testing.TB, err error) {
	t.Helper()
	if _, ci := os.LookupEnv("IDEMPOTENCY_CI"); errors.Is(err, exec.ErrNotFound) && !ci {
		t.Skipf("%v: \"make test\" installs the servers that the tests need", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}
