package sqlitestore

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	riskForgotten = "the records do not survive a restart, so their operations run again"
	riskRemote    = "file locks may have no effect, and acknowledged records may not be on a disk, so a key may be claimed twice"
)

// riskyFileSystems are the file systems with a known risk, by their numbers in statfs(2).
var riskyFileSystems = map[uint32]fileSystem{
	unix.TMPFS_MAGIC:           {name: "tmpfs", risk: "the file is in memory: " + riskForgotten},
	unix.RAMFS_MAGIC:           {name: "ramfs", risk: "the file is in memory: " + riskForgotten},
	unix.OVERLAYFS_SUPER_MAGIC: {name: "overlayfs", risk: "the file ends with its container: " + riskForgotten},
	unix.NFS_SUPER_MAGIC:       {name: "nfs", risk: riskRemote},
	unix.SMB_SUPER_MAGIC:       {name: "smb", risk: riskRemote},
	unix.SMB2_SUPER_MAGIC:      {name: "smb2", risk: riskRemote},
	unix.CIFS_SUPER_MAGIC:      {name: "cifs", risk: riskRemote},
	unix.V9FS_MAGIC:            {name: "9p", risk: riskRemote},
	unix.FUSE_SUPER_MAGIC:      {name: "fuse", risk: riskRemote},
	unix.CEPH_SUPER_MAGIC:      {name: "ceph", risk: riskRemote},
	unix.AFS_SUPER_MAGIC:       {name: "afs", risk: riskRemote},
	unix.AFS_FS_MAGIC:          {name: "afs", risk: riskRemote},
	unix.CODA_SUPER_MAGIC:      {name: "coda", risk: riskRemote},
	unix.OCFS2_SUPER_MAGIC:     {name: "ocfs2", risk: riskRemote},
}

// fileSystemOf returns the file system of path.
func fileSystemOf(path string) (fileSystem, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return fileSystem{}, err
	}
	known, ok := riskyFileSystems[uint32(stat.Type)]
	if !ok {
		known.name = fmt.Sprintf("of type %#x", uint32(stat.Type))
	}
	known.freeBytes = int64(stat.Bavail) * int64(stat.Bsize)
	return known, nil
}
