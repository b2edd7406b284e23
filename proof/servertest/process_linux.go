package servertest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// signalOrphan makes the kernel send sig to the process when the thread that started the process ends.
func signalOrphan(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// processorTime returns the processor time of all threads of the processes.
func processorTime(pids []int) (sum time.Duration, err error) {
	for _, pid := range pids {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // fails only for a bad pattern
		for _, name := range threads {
			stat, err := os.ReadFile(name)
			if err != nil {
				return 0, err
			}
			var ran time.Duration // in nanoseconds
			if _, err := fmt.Sscan(string(stat), &ran); err != nil {
				return 0, err
			}
			sum += ran
		}
	}
	return sum, nil
}

// childrenOf returns the IDs of the running children of a process.
func childrenOf(pid int) (ids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // fails only for a bad pattern
	for _, name := range stats {
		// The format is "42 (name) S 1 ...": id, name, state, parent. The name may contain any characters.
		stat, _ := os.ReadFile(name) // fails if the process has just ended
		var id, parent int
		var state string
		_, _ = fmt.Sscan(string(stat), &id)
		_, _ = fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &parent)
		if parent == pid {
			ids = append(ids, id)
		}
	}
	return ids
}
