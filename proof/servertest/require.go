package servertest

import (
	"errors"
	"os"
	"os/exec"
	"testing"
)

// Require ends the test unless err is nil. If a program is missing on this machine, which err tells by wrapping
// [exec.ErrNotFound], the test is skipped; but it fails where the environment variable IDEMPOTENCY_CI is set.
//
// Tests that share a server start it once, with [StartPostgres] for instance, and hand Require the error each.
func Require(t testing.TB, err error) {
	t.Helper()
	if _, ci := os.LookupEnv("IDEMPOTENCY_CI"); errors.Is(err, exec.ErrNotFound) && !ci {
		t.Skipf("%v: \"make test\" installs the servers that the tests need", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}
