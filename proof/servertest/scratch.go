//go:build unix

package servertest

import (
	"os"
	"sync"
	"syscall"
)

// scratch is the directory of this process, in which every server gets one.
type scratch struct {
	dir    string
	remove func() // called by nobody: it holds what tells the remover that this process still runs
}

// ownScratch makes it in the directory that IDEMPOTENCY_SERVER_FILES names, as the Makefile does, or among other temporary
// files.
var ownScratch = sync.OnceValues(func() (*scratch, error) {
	dir, err := os.MkdirTemp(os.Getenv("IDEMPOTENCY_SERVER_FILES"), "servertest-")
	if err != nil {
		return nil, err
	}
	remove, err := afterwards("rm", "-rf", dir)
	if err != nil {
		return nil, err
	}
	return &scratch{dir, remove}, os.Chmod(dir, 0o711) // the servers' users have to get to their directories
})

// newDir makes a directory that nobody else can open. It belongs to owner, nil being who runs this process.
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
