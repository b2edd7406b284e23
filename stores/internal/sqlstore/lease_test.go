package sqlstore

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// laggingLeases is a cluster that holds the record of a claim and its steps. Each method of Steps takes the next of nodes,
// which tells what the node has received.
type laggingLeases struct {
	Steps

	nodes       []lag // the last one stays
	entries     []byte
	isCompleted bool
	isMarked    bool // with RecordLost
}

type lag int

const (
	isCurrent   lag = iota
	lacksSteps      // has the record without the steps
	lacksRecord     // has nothing
)

func (l *laggingLeases) nextNode() lag {
	node := l.nodes[0]
	if len(l.nodes) > 1 {
		l.nodes = l.nodes[1:]
	}
	return node
}

func (l *laggingLeases) KeepsRows() {}

func (l *laggingLeases) Failure(_ string, err error) error { return err }

// errConflict is the error of a write that another node has overtaken.
type errConflict struct{ error }

// Do repeats a step after a conflict, as mysqlstore does.
func (l *laggingLeases) Do(_ context.Context, _ bool, run func(Steps) error) (bool, error) {
	for {
		err := run(l)
		if _, isConflict := err.(errConflict); !isConflict {
			return true, err
		}
	}
}

func (l *laggingLeases) HasRoom(int) bool { return true }

func (l *laggingLeases) Read(uuid.UUID) (*Row, error) {
	if l.nextNode() == lacksRecord {
		return &Row{Now: 1}, nil
	}
	row := NewRow(Names{}, []byte("token"), idempotency.Record{Attempt: 1})
	row.Found, row.Now, row.Expires = true, 1, 1<<40
	row.Lease.Valid, row.Response.Valid = !l.isCompleted, l.isCompleted
	return row, nil
}

func (l *laggingLeases) Complete(_ uuid.UUID, _, _ []byte, _ time.Duration, size int) (bool, error) {
	if l.nextNode() != isCurrent || len(l.entries) < size {
		return false, nil
	}
	l.isCompleted = true
	return true, nil
}

func (l *laggingLeases) Checkpoints(_ uuid.UUID, _ []byte) ([]byte, bool, error) {
	switch l.nextNode() {
	case lacksRecord:
		return nil, false, nil
	case lacksSteps:
		return nil, true, nil
	}
	return l.entries, true, nil
}

func (l *laggingLeases) Checkpoint(_ uuid.UUID, _, _ []byte, before int) (bool, error) {
	switch {
	case l.nextNode() != isCurrent:
		return false, errConflict{}
	case before != len(l.entries):
		return false, nil
	}
	l.isMarked = true
	return true, nil
}

func (l *laggingLeases) Put(uuid.UUID, *Row, *Row, []byte, time.Duration, time.Duration) (bool, error) {
	if l.nextNode() != isCurrent {
		return false, errConflict{}
	}
	return false, nil // the record exists
}

// A claim stores its answer although its statements reach nodes that have not received the record, or its steps, yet. No node
// that lags makes the claim believe that rows are lost, or that a repetition is useless.
func TestCompleteOnNodesThatLag(t *testing.T) {
	for name, nodes := range map[string][]lag{
		"no node lags":                     {isCurrent},
		"the steps arrive after Complete":  {lacksSteps, isCurrent},
		"two nodes in turn":                {lacksSteps, isCurrent, lacksSteps, isCurrent},
		"the steps arrive after a read":    {lacksSteps, lacksSteps, isCurrent},
		"the steps arrive after a mark":    {lacksSteps, lacksSteps, lacksSteps, isCurrent},
		"the record arrives after a read":  {lacksRecord, lacksRecord, isCurrent},
		"the record arrives after reads":   {lacksRecord, lacksRecord, lacksRecord, isCurrent},
		"the record arrives after a write": {lacksRecord, lacksRecord, lacksRecord, lacksRecord, isCurrent},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &laggingLeases{nodes: nodes, entries: appendEntry(nil, "book", []byte("1"))}
			claim := &leaseClaim{store: cluster, ownerToken: []byte("token"), grantedRecord: idempotency.Record{Attempt: 1}}
			claim.checkpoints.noteRelied(cluster.entries)
			require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Status: 201}, time.Hour))
			require.True(t, cluster.isCompleted)
			require.False(t, cluster.isMarked)
		})
	}
}

// After a node that lags for each other statement, Complete gives up, but the caller may repeat Complete.
func TestCompleteMayBeRepeated(t *testing.T) {
	var nodes []lag
	for range maxConflicts {
		nodes = append(nodes, lacksSteps, isCurrent)
	}
	cluster := &laggingLeases{nodes: nodes, entries: appendEntry(nil, "book", []byte("1"))}
	claim := &leaseClaim{store: cluster, ownerToken: []byte("token"), grantedRecord: idempotency.Record{Attempt: 1}}
	claim.checkpoints.noteRelied(cluster.entries)
	err := claim.Complete(t.Context(), idempotency.Response{Status: 201}, time.Hour)
	require.Error(t, err)
	require.NotErrorIs(t, err, idempotency.ErrRecordInvalid) // after which package idempotency repeats nothing
	require.NotErrorIs(t, err, idempotency.ErrClaimLost)
	require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Status: 201}, time.Hour))
}
