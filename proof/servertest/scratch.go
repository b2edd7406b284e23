//go:build unix

package servertest

import (
	"os"
	"sync"
	"syscall"
)

// scratch is the directory of this process. Each server has a subdirectory.
type scratch struct {
	dir    string
	remove func() // never called; keeps open the pipe whose end starts the removal
}

// ownScratch creates the directory in the directory named by the environment variable IDEMPOTENCY_SERVER_FILES, which
// the Makefile sets, or in the usual directory for temporary files.
var ownScratch = sync.OnceValues(func() (*scratch, error) {
	dir, err := os.MkdirTemp(os.Getenv("IDEMPOTENCY_SERVER_FILES"), "servertest-")
	if err != nil {
		return nil, err
	}
	remove, err := runAfterwards("rm", "-rf", dir)
	if err != nil {
		return nil, err
	}
	return &scratch{dir, remove}, os.Chmod(dir, 0o711) // the accounts of the servers must reach their directories
})

// newDir creates a directory that only owner can open. A nil owner means the account of this process.
func newDir(owner *syscall.Credential) (string, error) {
	s, err := ownScratch()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(s.dir, "")
	if err == nil && owner != nil {
		err = os.Chown(dir, int(owner.Uid), int(owner.Gid))
	}
	return dir, err
}
