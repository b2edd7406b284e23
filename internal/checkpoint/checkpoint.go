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
	Keeper   Keeper        // nil without a claim, or if the claim keeps no checkpoints
	HasClaim bool          // the attempt has a claim
	MustLoad bool          // the Keeper may have checkpoints of earlier attempts
	Timeout  time.Duration // the longest duration of one call of the Keeper

	loadMutex sync.Mutex // held while the Keeper loads all checkpoints

	mu sync.Mutex
	progress
	storedSteps
}

// progress is the state of the steps that this attempt runs or has run.
type progress struct {
	hasEnded      bool
	mayHaveStored bool            // the attempt may have stored a checkpoint
	runsAlone     bool            // the running step is of kind Alone
	runningCount  int             // number of running steps
	kindByName    map[string]Kind // kinds of the steps that are running or done
}

// storedSteps are the known checkpoints of this attempt and of earlier attempts.
type storedSteps struct {
	mayBeIncomplete bool // the store may have lost checkpoints of earlier attempts
	dataByName      map[string][]byte
	totalSize       int // bytes of names and data, known or about to be stored
}

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

// Errors of [Steps.BeginStep]. BeginStep also returns the errors of the Keeper.
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

// MayHaveStored reports whether this attempt may have stored a checkpoint.
func (s *Steps) MayHaveStored() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayHaveStored
}

// BeginStep begins a step, and returns the checkpoint of the step if a checkpoint is stored. After a success, the caller
// calls EndStep at the end of the step.
func (s *Steps) BeginStep(ctx context.Context, name string, kind Kind) (data []byte, found bool, err error) {
	if err := s.registerStep(name, kind); err != nil {
		return nil, false, err
	}
	if err := s.loadCheckpoints(ctx); err != nil {
		s.EndStep(name, Undone)
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
	case s.runsAlone, kind == Alone && s.runningCount > 0:
		return ErrAlone
	case s.kindByName == nil:
		s.kindByName, s.dataByName = make(map[string]Kind), make(map[string][]byte)
	}
	s.kindByName[name] = kind
	s.runningCount++
	s.runsAlone = kind == Alone
	return nil
}

// loadCheckpoints loads the checkpoints of earlier attempts from the Keeper, unless they are loaded already.
func (s *Steps) loadCheckpoints(ctx context.Context) error {
	deadline := time.Now().Add(s.Timeout) // includes the wait for loadMutex
	s.loadMutex.Lock()
	defer s.loadMutex.Unlock()
	if s.Keeper == nil || !s.MustLoad {
		return nil
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	found, err := s.Keeper.Checkpoints(ctx)
	if err != nil {
		return err
	}
	s.MustLoad = false
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

// LoadAgain makes the next step load all checkpoints again, because the store may have a checkpoint that is unknown
// here.
func (s *Steps) LoadAgain() {
	s.loadMutex.Lock()
	defer s.loadMutex.Unlock()
	s.MustLoad = true
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

// EndStep ends a step that BeginStep has begun.
func (s *Steps) EndStep(name string, how Ending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unregisterStep(name, how)
}

// unregisterStep is EndStep for a caller that holds mu.
func (s *Steps) unregisterStep(name string, how Ending) {
	s.runningCount--
	s.runsAlone = false
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

// HasCheckpoint reports whether a checkpoint with the name is known.
func (s *Steps) HasCheckpoint(name string) bool {
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

// ReserveBytes reserves n bytes for a checkpoint. If the total would exceed MaxTotal, ReserveBytes returns false.
func (s *Steps) ReserveBytes(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.totalSize+n > MaxTotal {
		return false
	}
	s.totalSize += n
	return true
}

// ReleaseBytes returns n bytes reserved by ReserveBytes, because nothing was stored.
func (s *Steps) ReleaseBytes(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totalSize -= n
}

// StoreCheckpoint calls the Keeper once to store a checkpoint. The result stored is the checkpoint in the store, which is an
// earlier one if the name was stored before.
func (s *Steps) StoreCheckpoint(ctx context.Context, name string, data []byte) (stored []byte, err error) {
	s.NoteStoring()
	stored, err = s.Keeper.Checkpoint(ctx, name, data)
	if err == nil {
		s.NoteStored(name, stored)
	}
	return stored, err
}

// NoteStoring notes that a checkpoint is about to be stored.
func (s *Steps) NoteStoring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mayHaveStored = true
}

// NoteStored notes a checkpoint that is stored.
func (s *Steps) NoteStored(name string, stored []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dataByName[name] = stored
}
