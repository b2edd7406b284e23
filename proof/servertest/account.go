//go:build unix

package servertest

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// account returns who runs a server in the place of root: the first of the users that this machine has. It returns nil
// if this process is not root's.
func account(names ...string) (owner *syscall.Credential, err error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range names {
		var u *user.User
		if u, err = user.Lookup(name); err == nil {
			return credential(u)
		}
	}
	return nil, err
}

func credential(u *user.User) (*syscall.Credential, error) {
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}
