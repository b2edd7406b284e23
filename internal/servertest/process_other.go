//go:build unix && !linux

package servertest

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// signalOrphan does nothing: only Linux tells the children of a process that dies.
func signalOrphan(*syscall.SysProcAttr, syscall.Signal) {}

// children returns the ids of the running children of a process.
func children(pid int) (ids []int) {
	out, _ := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output() // fails if there are none
	for field := range strings.FieldsSeq(string(out)) {
		if id, err := strconv.Atoi(field); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}
