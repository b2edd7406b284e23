// Package checkpoint is what an attempt at an operation knows of its steps. Package step runs them. It finds the attempt
// in the context of the handler, where the root has put it.
package checkpoint

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
)

// Key is that of the attempt in a context. The attempt has a method "Steps() *Steps".
type Key struct{}

// From returns the steps of the attempt that ctx belongs to, or nil.
func From(ctx context.Context) *Steps {
	attempt, ok := ctx.Value(Key{}).(interface{ Steps() *Steps })
	if !ok {
		return nil
	}
	return attempt.Steps()
}

// Keeper stores checkpoints under the claim of an attempt.
type Keeper interface {
	// CheckLease returns an error if the lease of the attempt may have lapsed, so that no effect may begin.
	CheckLease() error

	Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error)
	Checkpoints(ctx context.Context) (map[string][]byte, error)
}

// Steps are those of one attempt. They are safe for concurrent use.
type Steps struct {
	Keeper  Keeper        // nil: the claim keeps no checkpoints, or there is no claim
	Claimed bool          // there is a claim
	Again   bool          // there may be checkpoints of earlier attempts
	Timeout time.Duration // of a question to the Keeper

	loadMutex sync.Mutex // held while the Keeper is asked for all checkpoints

	mu sync.Mutex
	progress
	storedSteps
}

// progress is what the steps of this attempt have done.
type progress struct {
	hasEnded      bool
	mayHaveStored bool            // the attempt may have stored a checkpoint
	runningCount  int             // steps that run now, or alone
	kindByName    map[string]Kind // steps that run, or have ended without an error
}

// record is what is stored of this attempt and of earlier ones.
type storedSteps struct {
	mayBeIncomplete bool // checkpoints of earlier attempts may be missing
	dataByName      map[string][]byte
	totalSize       int // of the checkpoints that are known or about to be stored: bytes of names and data
}

// alone stands for the one step that runs, in a transaction.
const runningAlone = -1

// Kind says how a step runs.
type Kind uint8

// The kinds of steps.
const (
	Plain  Kind = iota // stores its result when it has run
	Marked             // stores a mark before it runs, and its result afterwards
	Alone              // runs in a transaction, and no other step runs at the same time
)

// Ended is for an attempt that has had no step.
var Ended = &Steps{progress: progress{hasEnded: true}}

// Mark ends the name of the checkpoint that says that a step has begun. No name of a step has it.
const Mark = "?"

// Lost is the name of the checkpoint that a store adds to a record that it has lost and made again.
const Lost = "?lost?"

// The bounds of the checkpoints of one operation.
const (
	MaxCount = 100
	MaxTotal = 256 << 10 // bytes of names and data
)

// Errors of [Steps.Begin]. Any other error is that of the Keeper.
var (
	ErrEnded = errors.New("the attempt has ended")
	ErrTwice = errors.New("the attempt has begun a step of this name before")
	ErrMany  = errors.New("the operation has too many steps")
	ErrAlone = errors.New("a step in a transaction is the only step that runs at its time")
)

// End ends all steps: none begins any more.
func (s *Steps) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hasEnded = true
}

// Kept reports whether this attempt may have stored a checkpoint.
func (s *Steps) Kept() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayHaveStored
}

// Begin begins a step of a kind, and returns its checkpoint if there is one. Without an error, the caller calls Leave when
// the step has ended.
func (s *Steps) Begin(ctx context.Context, name string, kind Kind) (data []byte, found bool, err error) {
	if err := s.registerStep(name, kind); err != nil {
		return nil, false, err
	}
	if err := s.loadCheckpoints(ctx); err != nil {
		s.Leave(name, Undone)
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	data, found = s.dataByName[name]
	if few := 2*(len(s.dataByName)+len(s.kindByName)) <= MaxCount; !found && !few && s.countCheckpoints() > MaxCount {
		s.unregisterStep(name, Undone)
		return nil, false, ErrMany
	}
	return data, found, nil
}

func (s *Steps) registerStep(name string, kind Kind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, twice := s.kindByName[name]
	switch {
	case s.hasEnded:
		return ErrEnded
	case twice:
		return ErrTwice
	case s.runningCount == runningAlone, kind == Alone && s.runningCount > 0:
		return ErrAlone
	case s.kindByName == nil:
		s.kindByName, s.dataByName = make(map[string]Kind), make(map[string][]byte)
	}
	s.kindByName[name] = kind
	s.runningCount++
	if kind == Alone {
		s.runningCount = runningAlone
	}
	return nil
}

// read asks the Keeper for the checkpoints of earlier attempts, unless it has answered before.
func (s *Steps) loadCheckpoints(ctx context.Context) error {
	until := time.Now().Add(s.Timeout) // which includes what others ask before
	s.loadMutex.Lock()
	defer s.loadMutex.Unlock()
	if s.Keeper == nil || !s.Again {
		return nil
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	found, err := s.Keeper.Checkpoints(ctx)
	if err != nil {
		return err
	}
	s.Again = false
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, data := range found {
		if name == Lost {
			s.mayBeIncomplete = true
			continue
		}
		if _, counted := s.dataByName[name]; !counted {
			s.totalSize += len(name) + len(data)
		}
		s.dataByName[name] = data
	}
	return nil
}

// ReadAgain makes the next step ask the Keeper for all checkpoints, because there may be one that this attempt does not know.
func (s *Steps) ReadAgain() {
	s.loadMutex.Lock()
	defer s.loadMutex.Unlock()
	s.Again = true
}

// count returns how many checkpoints there will be when all steps have ended, and all that have a mark.
func (s *Steps) countCheckpoints() int {
	all := make(map[string]bool, MaxCount)
	for name := range s.dataByName {
		all[name], all[strings.TrimSuffix(name, Mark)] = true, true
	}
	for name, kind := range s.kindByName {
		all[name] = true
		if kind == Marked {
			all[name+Mark] = true
		}
	}
	return len(all)
}

// Ending says whether the attempt may begin a step of the same name again.
type Ending bool

// The endings of a step.
const (
	Undone Ending = false
	Done   Ending = true
)

// Leave ends a step that Begin has begun.
func (s *Steps) Leave(name string, how Ending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unregisterStep(name, how)
}

func (s *Steps) unregisterStep(name string, how Ending) {
	s.runningCount = max(s.runningCount-1, 0)
	if how == Undone {
		delete(s.kindByName, name)
	}
}

// HasEnded reports whether the attempt has ended.
func (s *Steps) HasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasEnded
}

// Has reports whether there is a checkpoint of that name.
func (s *Steps) Has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.dataByName[name]
	return ok
}

// MayBeMissing reports whether checkpoints of earlier attempts may be missing.
func (s *Steps) MayBeMissing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayBeIncomplete
}

// Take counts so many more bytes, and reports whether they are within the bounds.
func (s *Steps) Take(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.totalSize+n > MaxTotal {
		return false
	}
	s.totalSize += n
	return true
}

// GiveBack ends what Take has counted, because nothing was stored.
func (s *Steps) GiveBack(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totalSize -= n
}

// Store asks the Keeper once to store a checkpoint, and returns the one that is stored: the first one counts.
func (s *Steps) Store(ctx context.Context, name string, data []byte) (stored []byte, err error) {
	s.Keeping()
	stored, err = s.Keeper.Checkpoint(ctx, name, data)
	if err == nil {
		s.Know(name, stored)
	}
	return stored, err
}

// Keeping notes that a checkpoint is about to be stored.
func (s *Steps) Keeping() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mayHaveStored = true
}

// Know notes a checkpoint that is stored.
func (s *Steps) Know(name string, stored []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dataByName[name] = stored
}
