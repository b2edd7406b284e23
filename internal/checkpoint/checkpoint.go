// Package checkpoint has the state of the steps of an attempt. The root package puts the attempt into the context of
// the handler, and package step finds the attempt there and runs the steps.
package checkpoint

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
)

// Key is the context key of the attempt. The attempt has a method "Steps() *Steps".
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

// Steps is the state of the steps of one attempt. Steps is safe for concurrent use.
type Steps struct {
	Keeper  Keeper        // nil without a claim, or if the claim keeps no checkpoints
	Claimed bool          // the attempt has a claim
	Again   bool          // the Keeper may have checkpoints of earlier attempts
	Timeout time.Duration // the longest duration of one call of the Keeper

	loadMutex sync.Mutex // held while the Keeper loads all checkpoints

	mu sync.Mutex
	progress
	storedSteps
}

// progress is the state of the steps that this attempt runs or has run.
type progress struct {
	hasEnded      bool
	mayHaveStored bool            // the attempt may have stored a checkpoint
	runningCount  int             // number of running steps, or runningAlone
	kindByName    map[string]Kind // kinds of the steps that are running or done
}

// storedSteps are the known checkpoints of this attempt and of earlier attempts.
type storedSteps struct {
	mayBeIncomplete bool // the store may have lost checkpoints of earlier attempts
	dataByName      map[string][]byte
	totalSize       int // bytes of names and data, known or about to be stored
}

// runningAlone is the value of runningCount while a step of kind Alone runs.
const runningAlone = -1

// Kind says how a step runs.
type Kind uint8

// The kinds of steps.
const (
	Plain  Kind = iota // stores the result after the run
	Marked             // stores a mark before the run, and the result after the run
	Alone              // runs in a transaction, and never beside another step
)

// Ended are the steps of an attempt that has ended without a step.
var Ended = &Steps{progress: progress{hasEnded: true}}

// Mark ends the name of a checkpoint that says that a step has begun. Names of steps never contain Mark.
const Mark = "?"

// Lost is the name of the checkpoint that a store adds when restoring a lost record.
const Lost = "?lost?"

// The bounds of the checkpoints of one operation.
const (
	MaxCount = 100
	MaxTotal = 256 << 10 // bytes of names and data
)

// Errors of [Steps.Begin]. Begin also returns the errors of the Keeper.
var (
	ErrEnded = errors.New("the attempt has ended")
	ErrTwice = errors.New("the attempt has begun a step of this name before")
	ErrMany  = errors.New("the operation has too many steps")
	ErrAlone = errors.New("a step in a transaction is the only step that runs at its time")
)

// End keeps further steps from beginning.
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

// Begin begins a step, and returns the checkpoint of the step if a checkpoint is stored. After a success, the caller
// calls Leave at the end of the step.
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
	// A name leads to two checkpoints at most, so the exact count is needed only near the limit.
	isFarBelow := 2*(len(s.dataByName)+len(s.kindByName)) <= MaxCount
	if !found && !isFarBelow && s.countCheckpoints() > MaxCount {
		s.unregisterStep(name, Undone)
		return nil, false, ErrMany
	}
	return data, found, nil
}

// registerStep adds a running step, unless the step may not run now.
func (s *Steps) registerStep(name string, kind Kind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, hasBegun := s.kindByName[name]
	switch {
	case s.hasEnded:
		return ErrEnded
	case hasBegun:
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

// loadCheckpoints loads the checkpoints of earlier attempts from the Keeper, unless they are loaded already.
func (s *Steps) loadCheckpoints(ctx context.Context) error {
	deadline := time.Now().Add(s.Timeout) // includes the wait for loadMutex
	s.loadMutex.Lock()
	defer s.loadMutex.Unlock()
	if s.Keeper == nil || !s.Again {
		return nil
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
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
		if _, isCounted := s.dataByName[name]; !isCounted {
			s.totalSize += len(name) + len(data)
		}
		s.dataByName[name] = data
	}
	return nil
}

// ReadAgain makes the next step load all checkpoints again, because the store may have a checkpoint that is unknown
// here.
func (s *Steps) ReadAgain() {
	s.loadMutex.Lock()
	defer s.loadMutex.Unlock()
	s.Again = true
}

// countCheckpoints returns the largest number of checkpoints that the known and begun steps can lead to. A step with a
// mark counts twice: the mark and the result.
func (s *Steps) countCheckpoints() int {
	names := make(map[string]bool, MaxCount)
	for name := range s.dataByName {
		names[name], names[strings.TrimSuffix(name, Mark)] = true, true
	}
	for name, kind := range s.kindByName {
		names[name] = true
		if kind == Marked {
			names[name+Mark] = true
		}
	}
	return len(names)
}

// Ending says whether a step is done, so that the attempt may not begin a step of the same name again.
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

// unregisterStep is Leave for a caller that holds mu.
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

// Has reports whether a checkpoint with the name is known.
func (s *Steps) Has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.dataByName[name]
	return ok
}

// MayBeMissing reports whether the store may have lost checkpoints of earlier attempts.
func (s *Steps) MayBeMissing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayBeIncomplete
}

// Take reserves n bytes for a checkpoint. If the total would exceed MaxTotal, Take returns false.
func (s *Steps) Take(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.totalSize+n > MaxTotal {
		return false
	}
	s.totalSize += n
	return true
}

// GiveBack returns n bytes reserved by Take, because nothing was stored.
func (s *Steps) GiveBack(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totalSize -= n
}

// Store calls the Keeper once to store a checkpoint. The result stored is the checkpoint in the store, which is an
// earlier one if the name was stored before.
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
