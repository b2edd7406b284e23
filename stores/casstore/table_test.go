package casstore_test

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency/stores/casstore"
)

// table is a table in memory.
type table struct {
	mu      sync.Mutex
	values  map[string]value
	writes  int
	ttl     time.Duration // of the last write
	calls   []string
	faults  []fault // of the next calls, in turn
	late    func()  // a request that arrives behind the next call
	isMute  bool    // writes tell no versions
	largest int     // bytes of a value; zero: any
	refusal error   // of what is larger
}

type value struct {
	casstore.Value
	expires time.Time
}

// fault is what becomes of a call, which do carries out. The table is locked.
type fault func(ctx context.Context, m *table, key string, do func() error) error

var errLost = errors.New("connection lost")

// pass is no fault.
func pass(_ context.Context, _ *table, _ string, do func() error) error { return do() }

// loseRequest has the call have no effect.
func loseRequest(context.Context, *table, string, func() error) error { return errLost }

// loseReply has the call have its effect all the same.
func loseReply(_ context.Context, _ *table, _ string, do func() error) error {
	_ = do()
	return errLost
}

// holdReply is loseReply, but the caller has to wait until it gives up.
func holdReply(ctx context.Context, m *table, _ string, do func() error) error {
	_ = do()
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	return ctx.Err()
}

// holdRequest has the call take effect behind the next one, after the caller has given up.
func holdRequest(_ context.Context, m *table, _ string, do func() error) error {
	m.late = func() { _ = do() }
	return errLost
}

// overtake has somebody else write the same value before.
func overtake(_ context.Context, m *table, key string, do func() error) error {
	if v, ok := m.values[key]; ok {
		m.writes++
		v.Version = strconv.Itoa(m.writes)
		m.values[key] = v
	}
	return do()
}

func newTable() *table { return &table{values: make(map[string]value)} }

// inject has the next calls fail.
func (m *table) inject(faults ...fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = faults
}

// struck reports whether all faults have struck.
func (m *table) struck() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.faults) == 0
}

// taken returns the calls since it was asked last.
func (m *table) taken() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := strings.Join(m.calls, " ")
	m.calls = nil
	return all
}

// stored returns the one value.
func (m *table) stored() (key string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, v := range m.values {
		return key, bytes.Clone(v.Data)
	}
	return "", nil
}

// tamper replaces the data of a value behind the back of the store.
func (m *table) tamper(key string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.values[key]
	v.Data = data
	m.values[key] = v
}

// call carries out one call, or what a fault makes of it.
func (m *table) call(ctx context.Context, name, key string, do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, name)
	arrives := m.late
	m.late = nil
	if arrives != nil {
		defer arrives()
	}
	struck := fault(pass)
	if len(m.faults) > 0 {
		struck, m.faults = m.faults[0], m.faults[1:]
	}
	return struck(ctx, m, key, do)
}

// Get implements [casstore.Table].
func (m *table) Get(ctx context.Context, key string) (found casstore.Value, err error) {
	err = m.call(ctx, "Get", key, func() error {
		v, ok := m.values[key]
		if !ok || time.Now().After(v.expires) {
			return casstore.ErrNotFound
		}
		found = casstore.Value{Data: bytes.Clone(v.Data), Version: v.Version}
		return nil
	})
	return found, err
}

// put stores data if the present version is as expected, which is empty if there is no value.
func (m *table) put(key, expected string, data []byte, ttl time.Duration) (string, error) {
	v := m.values[key]
	if time.Now().After(v.expires) {
		v = value{}
	}
	if v.Version != expected {
		return "", casstore.ErrConflict
	}
	if m.refusal != nil && len(data) > m.largest {
		return "", m.refusal
	}
	m.writes++
	m.ttl = ttl
	version := strconv.Itoa(m.writes)
	m.values[key] = value{
		casstore.Value{Data: bytes.Clone(data), Version: version}, time.Now().Add(ttl),
	}
	if m.isMute {
		return "", nil
	}
	return version, nil
}

// Create implements [casstore.Table].
func (m *table) Create(ctx context.Context, key string, data []byte, ttl time.Duration) (version string, err error) {
	err = m.call(ctx, "Create", key, func() (err error) {
		version, err = m.put(key, "", data, ttl)
		return err
	})
	return version, err
}

// Replace implements [casstore.Table].
func (m *table) Replace(ctx context.Context, key, old string, data []byte, ttl time.Duration) (version string, err error) {
	err = m.call(ctx, "Replace", key, func() (err error) {
		version, err = m.put(key, old, data, ttl)
		return err
	})
	return version, err
}

// Delete implements [casstore.Table].
func (m *table) Delete(ctx context.Context, key, version string) error {
	return m.call(ctx, "Delete", key, func() error {
		if m.values[key].Version != version {
			return casstore.ErrConflict
		}
		delete(m.values, key)
		return nil
	})
}
