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

// signalOrphan has no effect, because only Linux signals the children of a dead process.
func signalOrphan(*syscall.SysProcAttr, syscall.Signal) {}

// processorTime is supported on Linux only.
func processorTime([]int) (time.Duration, error) { return 0, errors.ErrUnsupported }

// childrenOf returns the IDs of the running children of a process.
func childrenOf(pid int) (ids []int) {
	out, _ := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output() // fails without children
	for field := range strings.FieldsSeq(string(out)) {
		if id, err := strconv.Atoi(field); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}
