//go:build unix && !linux

package servertest

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// signalOrphan does nothing: only Linux tells the children of a process that dies.
func signalOrphan(*syscall.SysProcAttr, syscall.Signal) {}

// processorTime is known on Linux only.
func processorTime([]int) (time.Duration, error) { return 0, errors.ErrUnsupported }

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
