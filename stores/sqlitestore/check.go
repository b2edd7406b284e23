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

// Check reports settings that weaken the promise of the store or stop the store from working. Call Check when the
// program starts. Check returns all findings joined; [idempotency.Findings] returns the findings as a list. Each of
// these findings is an [*idempotency.UnsafeSetting] to weigh:
//
//   - "file system": the file is in memory, in a container whose files end with the container, or on a remote machine.
//   - "synchronous": a loss of power may forget acknowledged records.
//   - "wal_autocheckpoint": a hook of the driver has switched automatic checkpoints off, so the log grows.
//   - "permissions": every user of the machine may read or write the file.
//   - "free space": the disk has less than 64 MiB free, or less than MaxBytes still allows.
//
// Any different error means that the store does not work: for example, the file is damaged, read-only or gone, or the
// table is gone or of a different version. File systems and free space are known on Linux only.
func (s *Store) Check(ctx context.Context) error {
	findings := append(s.checkWriting(ctx), s.checkFileSystem()...)
	return errors.Join(append(findings, s.checkPermissions())...)
}

func (s *Store) unsafeSetting(setting, value, risk string) error {
	return &idempotency.UnsafeSetting{Node: s.filePath, Setting: setting, Value: value, Risk: risk}
}

// checkWriting checks the settings of the writing connection. The journal mode needs no check, because the mode cannot
// change while a store is open.
func (s *Store) checkWriting(ctx context.Context) (findings []error) {
	var synchronous, autocheckpoint int
	_, err := s.writer.submitStep(ctx, false, func(*transaction) error {
		if _, err := verifyTable(s.writer.conn.Conn); err != nil {
			return err
		}
		return errors.Join(
			s.writer.conn.QueryRowContext(statementContext, "PRAGMA synchronous").Scan(&synchronous),
			s.writer.conn.QueryRowContext(statementContext, "PRAGMA wal_autocheckpoint").Scan(&autocheckpoint))
	})
	if err != nil {
		return []error{wrapFailure("check", err)}
	}
	levels := []string{"OFF", "NORMAL", "FULL", "EXTRA"}
	if synchronous < slices.Index(levels, Full.String()) {
		findings = append(findings, s.unsafeSetting("synchronous", levels[max(0, synchronous)],
			"a power failure loses the last records, so their operations run again"))
	}
	if autocheckpoint <= 0 {
		findings = append(findings, s.unsafeSetting("wal_autocheckpoint", strconv.Itoa(autocheckpoint),
			"the write-ahead log grows until the store is closed"))
	}
	return findings
}

func (s *Store) checkPermissions() error {
	info, err := os.Stat(s.filePath)
	if err != nil {
		return fmt.Errorf("sqlitestore: check: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o006 != 0 {
		return s.unsafeSetting("permissions", mode.String(), "every user of the machine may read or change the stored answers")
	}
	return nil
}

// minFreeBytes lets the log grow to the usual size, and leaves time to warn the service.
const minFreeBytes = 64 << 20

func (s *Store) checkFileSystem() (findings []error) {
	info, err := fileSystemOf(s.filePath)
	if err != nil {
		return []error{fmt.Errorf("sqlitestore: check: %w", err)}
	}
	if info.risk != "" {
		findings = append(findings, s.unsafeSetting("file system", info.name, info.risk))
	}
	if info.name == "" {
		return findings // the platform is unknown
	}
	file, err := os.Stat(s.filePath)
	if err != nil {
		return append(findings, fmt.Errorf("sqlitestore: check: %w", err))
	}
	if needed := max(minFreeBytes, s.opts.MaxBytes-file.Size()); info.freeBytes < needed {
		findings = append(findings, s.unsafeSetting("free space", fmt.Sprintf("%d bytes, less than %d", info.freeBytes, needed),
			"on a full disk, the store refuses new operations, and cannot keep the answers of running operations"))
	}
	return findings
}

// fileSystem describes the file system of a file.
type fileSystem struct {
	name      string // empty: unknown
	risk      string // empty: no known risk
	freeBytes int64  // free bytes for unprivileged users
}
