package benchmark

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash/maphash"
	"slices"
	"sync"
	"time"
)

// leastMemory is a sharded map. Records never expire.
type leastMemory struct {
	hashSeed maphash.Seed
	shards   [64]leastShard
}

type leastShard struct {
	mu      sync.Mutex
	records map[string]*leastRecord
	_       [40]byte // pads the shard to a cache line
}

type leastRecord struct {
	fingerprint [sha256.Size]byte
	ownerToken  [16]byte
	isDone      bool
	answer      leastAnswer
	expiresAt   int64
}

func newLeastMemory() *leastMemory {
	s := &leastMemory{hashSeed: maphash.MakeSeed()}
	for i := range s.shards {
		s.shards[i].records = make(map[string]*leastRecord)
	}
	return s
}

func (s *leastMemory) findShard(key string) *leastShard {
	return &s.shards[maphash.String(s.hashSeed, key)%uint64(len(s.shards))]
}

func (s *leastMemory) claimKey(_ context.Context, key string, c *leastCall) (leastState, error) {
	now := time.Now().Unix()
	sh := s.findShard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch record := sh.records[key]; {
	case record == nil:
	case record.fingerprint != c.fingerprint:
		return stateReused, nil
	case !record.isDone:
		return stateRunning, nil
	default:
		c.storedAnswer = record.answer
		return stateDone, nil
	}
	sh.records[key] = &leastRecord{fingerprint: c.fingerprint, ownerToken: c.ownerToken, expiresAt: now + int64(lease.Seconds())}
	return stateClaimed, nil
}

var errClaimLost = errors.New("benchmark: the claim is lost")

func (s *leastMemory) completeRecord(_ context.Context, key string, c *leastCall) error {
	answer := leastAnswer{c.newAnswer.status, slices.Clone(c.newAnswer.headerFields), bytes.Clone(c.newAnswer.body)}
	sh := s.findShard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	record := sh.records[key]
	if record.ownerToken != c.ownerToken {
		return errClaimLost
	}
	record.answer, record.isDone = answer, true
	record.expiresAt += int64((ttl - lease).Seconds())
	return nil
}
