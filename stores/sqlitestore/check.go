package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/idempotency-go/idempotency"
)

// Check reports what would break the promise of the store, or keep it from working. Call it when the program starts. It
// returns all findings joined. Each of these is an [*idempotency.UnsafeSetting] to weigh:
//
//   - "file system": one in memory, one that ends with its container, or one on another machine.
//   - "synchronous", if a loss of power may forget what was acknowledged.
//   - "wal_autocheckpoint", if a hook of the driver has switched it off, so that the log grows.
//   - "permissions", if every user of the machine may read or write the file.
//   - "free space", if the disk has less than 64 MiB free, or less than what MaxBytes still allows.
//
// Any other error says that the store does not work: the file is damaged, read-only or gone, say, or the table in it is
// gone or of another version. File systems and free space are known on Linux only. [idempotency.Findings]
// returns the findings one by one.
func (s *Store) Check(ctx context.Context) error {
	findings := append(s.checkWriting(ctx), s.checkFileSystem()...)
	return errors.Join(append(findings, s.checkPermissions())...)
}

func (s *Store) unsafe(setting, value, risk string) error {
	return &idempotency.UnsafeSetting{Node: s.path, Setting: setting, Value: value, Risk: risk}
}

// checkWriting asks the connection that writes. The journal mode cannot change while a store is open.
func (s *Store) checkWriting(ctx context.Context) (findings []error) {
	var synchronous, autocheckpoint int
	_, err := s.writer.do(ctx, false, func(*transaction) error {
		if _, err := verify(s.writer.conn.Conn); err != nil {
			return err
		}
		return errors.Join(
			s.writer.conn.QueryRowContext(untouched, "PRAGMA synchronous").Scan(&synchronous),
			s.writer.conn.QueryRowContext(untouched, "PRAGMA wal_autocheckpoint").Scan(&autocheckpoint))
	})
	if err != nil {
		return []error{failure("check", err)}
	}
	levels := []string{"OFF", "NORMAL", "FULL", "EXTRA"}
	if synchronous < slices.Index(levels, Full.String()) {
		findings = append(findings, s.unsafe("synchronous", levels[max(0, synchronous)],
			"a loss of power forgets the last records, and their operations run again"))
	}
	if autocheckpoint <= 0 {
		findings = append(findings, s.unsafe("wal_autocheckpoint", strconv.Itoa(autocheckpoint),
			"the log beside the file grows until the store is closed"))
	}
	return findings
}

func (s *Store) checkPermissions() error {
	is, err := os.Stat(s.path)
	if err != nil {
		return fmt.Errorf("sqlitestore: check: %w", err)
	}
	if mode := is.Mode().Perm(); mode&0o006 != 0 {
		return s.unsafe("permissions", mode.String(), "every user of the machine may read or change the answers in it")
	}
	return nil
}

// leastFree is enough for the log to grow to its usual size, and for a service to be warned.
const leastFree = 64 << 20

func (s *Store) checkFileSystem() (findings []error) {
	is, err := fileSystemOf(s.path)
	if err != nil {
		return []error{fmt.Errorf("sqlitestore: check: %w", err)}
	}
	if is.risk != "" {
		findings = append(findings, s.unsafe("file system", is.name, is.risk))
	}
	if is.name == "" {
		return findings // not known here
	}
	file, err := os.Stat(s.path)
	if err != nil {
		return append(findings, fmt.Errorf("sqlitestore: check: %w", err))
	}
	if needed := max(leastFree, s.opts.MaxBytes-file.Size()); is.free < needed {
		findings = append(findings, s.unsafe("free space", fmt.Sprintf("%d bytes, less than %d", is.free, needed),
			"a full disk refuses new operations, and cannot keep the answers of those that run"))
	}
	return findings
}

// fileSystem is what a file is stored on.
type fileSystem struct {
	name string // empty: not known
	risk string // empty: none is known
	free int64  // bytes
}
