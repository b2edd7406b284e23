//go:build unix

package servertest

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// findAccount returns the account that runs a server instead of root: the first of names that exists on this machine.
// The result is nil if this process does not run as root.
func findAccount(names ...string) (owner *syscall.Credential, err error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range names {
		var u *user.User
		if u, err = user.Lookup(name); err == nil {
			return parseCredential(u)
		}
	}
	return nil, err
}

func parseCredential(u *user.User) (*syscall.Credential, error) {
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}
