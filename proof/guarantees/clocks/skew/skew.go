// Package skew shifts the clocks that the Go runtime of this process reads.
package skew

import (
	"os"
	"syscall"
	"unsafe"
)

// The clocks that Follow shifts. The values are positions in the file.
const (
	Wall = iota
	Monotonic

	clocks = 2
)

// Size is the size of the file in bytes. The file has the seconds to add to each clock, as a native 64-bit integer.
const Size = clocks * 8

// Follow makes the clocks of this process follow the file name: the runtime adds the seconds in the file to each reading. A
// write to the file therefore makes the clocks jump at once. A file of zeros leaves the clocks right.
func Follow(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	page, err := syscall.Mmap(int(file.Fd()), 0, Size, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	return followFile((*[clocks]int64)(unsafe.Pointer(unsafe.SliceData(page))))
}
