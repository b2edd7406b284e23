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

	reading sync.Mutex // held while the Keeper is asked for all checkpoints

	mu sync.Mutex
	progress
	record
}

// progress is what the steps of this attempt have done.
type progress struct {
	ended   bool
	kept    bool            // the attempt may have stored a checkpoint
	running int             // steps that run now, or alone
	begun   map[string]Kind // steps that run, or have ended without an error
}

// record is what is stored of this attempt and of earlier ones.
type record struct {
	lost  bool // checkpoints of earlier attempts may be missing
	known map[string][]byte
	size  int // of the checkpoints that are known or about to be stored: bytes of names and data
}

// alone stands for the one step that runs, in a transaction.
const alone = -1

// Kind says how a step runs.
type Kind uint8

// The kinds of steps.
const (
	Plain  Kind = iota // stores its result when it has run
	Marked             // stores a mark before it runs, and its result afterwards
	Alone              // runs in a transaction, and no other step runs at the same time
)

// Ended is for an attempt that has had no step.
var Ended = &Steps{progress: progress{ended: true}}

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
	s.ended = true
}

// Kept reports whether this attempt may have stored a checkpoint.
func (s *Steps) Kept() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept
}

// Begin begins a step of a kind, and returns its checkpoint if there is one. Without an error, the caller calls Leave when
// the step has ended.
func (s *Steps) Begin(ctx context.Context, name string, kind Kind) (data []byte, found bool, err error) {
	if err := s.enter(name, kind); err != nil {
		return nil, false, err
	}
	if err := s.read(ctx); err != nil {
		s.Leave(name, Undone)
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	data, found = s.known[name]
	if few := 2*(len(s.known)+len(s.begun)) <= MaxCount; !found && !few && s.count() > MaxCount {
		s.leave(name, Undone)
		return nil, false, ErrMany
	}
	return data, found, nil
}

func (s *Steps) enter(name string, kind Kind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, twice := s.begun[name]
	switch {
	case s.ended:
		return ErrEnded
	case twice:
		return ErrTwice
	case s.running == alone, kind == Alone && s.running > 0:
		return ErrAlone
	case s.begun == nil:
		s.begun, s.known = make(map[string]Kind), make(map[string][]byte)
	}
	s.begun[name] = kind
	s.running++
	if kind == Alone {
		s.running = alone
	}
	return nil
}

// read asks the Keeper for the checkpoints of earlier attempts, unless it has answered before.
func (s *Steps) read(ctx context.Context) error {
	until := time.Now().Add(s.Timeout) // which includes what others ask before
	s.reading.Lock()
	defer s.reading.Unlock()
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
			s.lost = true
			continue
		}
		if _, counted := s.known[name]; !counted {
			s.size += len(name) + len(data)
		}
		s.known[name] = data
	}
	return nil
}

// ReadAgain makes the next step ask the Keeper for all checkpoints, because there may be one that this attempt does not know.
func (s *Steps) ReadAgain() {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.Again = true
}

// count returns how many checkpoints there will be when all steps have ended, and all that have a mark.
func (s *Steps) count() int {
	all := make(map[string]bool, MaxCount)
	for name := range s.known {
		all[name], all[strings.TrimSuffix(name, Mark)] = true, true
	}
	for name, kind := range s.begun {
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
	s.leave(name, how)
}

func (s *Steps) leave(name string, how Ending) {
	s.running = max(s.running-1, 0)
	if how == Undone {
		delete(s.begun, name)
	}
}

// HasEnded reports whether the attempt has ended.
func (s *Steps) HasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// Has reports whether there is a checkpoint of that name.
func (s *Steps) Has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.known[name]
	return ok
}

// MayBeMissing reports whether checkpoints of earlier attempts may be missing.
func (s *Steps) MayBeMissing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// Take counts so many more bytes, and reports whether they are within the bounds.
func (s *Steps) Take(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size+n > MaxTotal {
		return false
	}
	s.size += n
	return true
}

// GiveBack ends what Take has counted, because nothing was stored.
func (s *Steps) GiveBack(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size -= n
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
	s.kept = true
}

// Know notes a checkpoint that is stored.
func (s *Steps) Know(name string, stored []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[name] = stored
}
