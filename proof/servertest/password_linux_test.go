package servertest_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// All users of the machine can read the arguments of a process. An attacker who takes over a server must not become
// root.
func TestProcessesHidePasswordsAndAreNotRoot(t *testing.T) {
	t.Parallel()
	s, db, m := servertest.Redis(t), servertest.Postgres(t), servertest.MariaDB(t)
	standby := servertest.Replica(t, db.Addr())
	for _, process := range slices.Concat(s.Processes(), db.Processes(), m.Processes(), standby.Processes()) {
		dir := fmt.Sprintf("/proc/%d", process)
		info, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the child has ended
		}
		check(t, err)
		arguments, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			continue
		}
		expectNoPassword(t, string(arguments))
		if info.Sys().(*syscall.Stat_t).Uid == 0 {
			t.Errorf("%q runs as root", arguments)
		}
	}
}
