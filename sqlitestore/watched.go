package sqlitestore

import (
	"fmt"
	"os"
)

// watched are the files of a database as they were when it was opened: it, its log, and what processes share of that. A
// file that was deleted goes on to exist for those who have it open, and what they write ends with them.
type watched struct {
	paths []string
	are   []os.FileInfo
}

func watch(path string) (*watched, error) {
	w := &watched{paths: []string{path, path + "-wal", path + "-shm"}}
	for _, path := range w.paths {
		is, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		w.are = append(w.are, is)
	}
	return w, nil
}

// check returns an error that wraps ErrReplaced unless all files are the same. It opens none: to close one would end
// the locks of the process (POSIX).
func (w *watched) check() error {
	for i, path := range w.paths {
		is, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrReplaced, err)
		}
		if !os.SameFile(is, w.are[i]) {
			return fmt.Errorf("%w: %s", ErrReplaced, path)
		}
	}
	return nil
}
