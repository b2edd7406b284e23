package sqlitestore

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	forgotten = "its records do not survive a restart, and their operations run again"
	distant   = "its locks may exclude nobody, and what was acknowledged may be on no disk: keys may be claimed twice"
)

// fileSystems have a risk. The numbers are those of statfs(2).
var fileSystems = map[uint32]fileSystem{
	unix.TMPFS_MAGIC:           {name: "tmpfs", risk: "it is in memory: " + forgotten},
	unix.RAMFS_MAGIC:           {name: "ramfs", risk: "it is in memory: " + forgotten},
	unix.OVERLAYFS_SUPER_MAGIC: {name: "overlayfs", risk: "it ends with its container: " + forgotten},
	unix.NFS_SUPER_MAGIC:       {name: "nfs", risk: distant},
	unix.SMB_SUPER_MAGIC:       {name: "smb", risk: distant},
	unix.SMB2_SUPER_MAGIC:      {name: "smb2", risk: distant},
	unix.CIFS_SUPER_MAGIC:      {name: "cifs", risk: distant},
	unix.V9FS_MAGIC:            {name: "9p", risk: distant},
	unix.FUSE_SUPER_MAGIC:      {name: "fuse", risk: distant},
	unix.CEPH_SUPER_MAGIC:      {name: "ceph", risk: distant},
	unix.AFS_SUPER_MAGIC:       {name: "afs", risk: distant},
	unix.AFS_FS_MAGIC:          {name: "afs", risk: distant},
	unix.CODA_SUPER_MAGIC:      {name: "coda", risk: distant},
	unix.OCFS2_SUPER_MAGIC:     {name: "ocfs2", risk: distant},
}

func fileSystemOf(path string) (fileSystem, error) {
	var is unix.Statfs_t
	if err := unix.Statfs(path, &is); err != nil {
		return fileSystem{}, err
	}
	known, ok := fileSystems[uint32(is.Type)]
	if !ok {
		known.name = fmt.Sprintf("of type %#x", uint32(is.Type))
	}
	known.free = int64(is.Bavail) * int64(is.Bsize)
	return known, nil
}
