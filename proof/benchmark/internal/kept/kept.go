// Package kept opens stores whose size can be asked, and which can be filled faster than by requests. Each is on a server,
// or in a file, of its own.
package kept

import (
	"context"
	"slices"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Subject is a store that is measured.
type Subject struct {
	Name     string
	Room     string // what records take: "memory", "disk" or "bill"
	Emulated bool   // there is no Copy, and time says nothing
	Open     func(connections int) (*Target, error)
}

// Target is an empty store, with so many connections if it needs any.
type Target struct {
	Store idempotency.Store

	// Size returns how many bytes the store takes now.
	Size func() (int64, error)

	// Copy adds n records like that of key, under digests that no key has. They end at a given time.
	Copy func(ctx context.Context, key idempotency.Key, n int, end time.Time) error

	// Maintain deletes what has ended. It is nil if nobody has to call it.
	Maintain func(ctx context.Context) error

	closers []func() // the last one first
}

// Close ends clients and servers, and deletes the files.
func (t *Target) Close() {
	for _, c := range slices.Backward(t.closers) {
		c()
	}
}

func (t *Target) opened(err error) (*Target, error) {
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// All are the stores of this project.
var All = []Subject{
	{Name: "memory", Room: "memory", Open: openMemory},
	{Name: "Redis", Room: "memory", Open: openRedis},
	{Name: "SQLite", Room: "disk", Open: openSQLite},
	{Name: "PostgreSQL", Room: "disk", Open: openPostgres},
	{Name: "MariaDB", Room: "disk", Open: openMariaDB},
	{Name: "DynamoDB", Room: "bill", Emulated: true, Open: openDynamoDB},
}
