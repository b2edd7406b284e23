package redisconn_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/internal/redisconn"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

func TestMain(m *testing.M) { testservice.Main(m) }

var (
	errBusy    = errors.New("busy")
	errFull    = errors.New("full")
	errForeign = errors.New("foreign")
	errCut     = errors.New("connection cut")
)

func newConn(t *testing.T, client redis.Cmdable, replicas int) *redisconn.Conn {
	t.Helper()
	conn, err := redisconn.New(client, replicas, redisconn.Errors{Busy: errBusy, Full: errFull, Foreign: errForeign})
	require.NoError(t, err)
	return conn
}

// setHook is a hook that handles each SET by the next of its handlers. After the last handler, each SET is sent.
type setHook struct {
	testservice.BeforeEach
	handlers []setHandler
}

type setHandler func(send func() error) error

func (h *setHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		send := func() error { return next(ctx, cmd) }
		if cmd.Name() != "set" || len(h.handlers) == 0 {
			return send()
		}
		handle := h.handlers[0]
		h.handlers = h.handlers[1:]
		return handle(send)
	}
}

// SetNX reports Lost if the server may have executed a try without a reply, whether the Conn or the client has repeated it.
func TestSetNXReportsLostReplies(t *testing.T) {
	t.Parallel()
	var (
		cut    setHandler = func(func() error) error { return errCut }
		noConn setHandler = func(func() error) error { return redis.ErrPoolTimeout }
		unread setHandler = func(send func() error) error { return cmp.Or(send(), errCut) }
		twice  setHandler = func(send func() error) error { return cmp.Or(send(), send()) } // like a client that repeats the command
		later  setHandler = func(send func() error) error { return cmp.Or(send(), redis.ErrPoolTimeout) }
	)
	server := servertest.Redis(t)
	for name, row := range map[string]struct {
		handlers []setHandler
		set      bool
		lost     bool
		err      error
	}{
		"answered":                          {nil, true, false, nil},
		"cut":                               {[]setHandler{cut}, true, true, nil},
		"cut each time":                     {[]setHandler{cut, cut, cut}, false, true, errCut},
		"no connection":                     {[]setHandler{noConn}, true, false, nil},
		"never a connection":                {[]setHandler{noConn, noConn, noConn}, false, false, errBusy},
		"no connection after a cut":         {[]setHandler{cut, noConn, noConn}, false, true, errCut},
		"reply lost":                        {[]setHandler{unread}, false, true, nil},
		"client tries again":                {[]setHandler{twice}, false, true, nil},
		"client sends, finds no connection": {[]setHandler{later, noConn, noConn}, false, true, errBusy},
		"client sends between two tries without a connection": {[]setHandler{noConn, later, noConn}, false, true, errBusy},
	} {
		t.Run(name, func(t *testing.T) {
			client := testservice.NewRedisClient(t, server.Addr(), testservice.WithContextTimeout)
			require.NoError(t, client.Ping(t.Context()).Err()) // opens a connection
			client.AddHook(&setHook{func(string) {}, slices.Clone(row.handlers)})
			value := &redisconn.Value{Text: []byte("value of " + name)}
			result, err := newConn(t, client, 0).SetNX(t.Context(), any(name), value, int64(60_000))
			require.Equal(t, row.lost, result.Lost)
			require.ErrorIs(t, err, row.err)
			require.Equal(t, row.set, result.IsSet)
			if err == nil && !result.IsSet {
				require.Equal(t, string(value.Text), string(result.Current), "the value of this call")
			}
		})
	}
}

// An error of the server is a reply, so the step is not lost. The error wraps one of Errors.
func TestErrorsOfTheServer(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	conn, echo := newConn(t, client, 0), redisconn.NewScript("redis.call('SET', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])")
	run := func(key string, want error) {
		t.Helper()
		reply, lost, err := conn.Run(t.Context(), echo, key, "value")
		require.ErrorIs(t, err, want)
		require.False(t, lost)
		if want == nil {
			require.Equal(t, "value", reply)
		}
	}
	run("key", nil)
	require.NoError(t, client.RPush(t.Context(), "list", "value").Err())
	snapshot, err := conn.ReadSnapshot(t.Context(), "list", "hash")
	require.ErrorIs(t, err, errForeign, snapshot)
	snapshot, err = conn.ReadSnapshot(t.Context(), "none", "hash")
	require.NoError(t, err)
	require.Equal(t, redisconn.NoKey, snapshot.Expiry)
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	run("other", errFull)
}

// A step ends at its deadline although the client goes on waiting.
func TestStepsEndInTime(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	client := testservice.NewRedisClient(t, server.Addr())
	conn := newConn(t, struct{ redis.Cmdable }{client}, 0)
	require.NoError(t, client.Ping(t.Context()).Err())
	require.NoError(t, server.Pause())
	defer server.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	result, err := conn.SetNX(ctx, any("key"), &redisconn.Value{Text: []byte("value")}, int64(1000))
	require.ErrorContains(t, err, "did not answer in time")
	require.True(t, result.Lost)
	require.Less(t, time.Since(began), 2*time.Second) // the client itself waits for three
}

// lateHook has each pipeline answered after the deadline of its caller.
type lateHook struct {
	testservice.BeforeEach
	isAnswered chan struct{}
}

func (h *lateHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if ctx.Done() == nil { // the commands that open a connection for the pipeline below
			return next(ctx, cmds)
		}
		defer close(h.isAnswered)
		<-ctx.Done()
		return next(context.WithoutCancel(ctx), cmds)
	}
}

// A reading that has ended at its deadline reads nothing that the client may still write, which the race detector checks.
func TestLateReplyIsNotRead(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	require.NoError(t, client.Ping(t.Context()).Err())
	hook := &lateHook{func(string) {}, make(chan struct{})}
	client.AddHook(hook)
	conn := newConn(t, struct{ redis.Cmdable }{client}, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := conn.ReadSnapshot(ctx, "key", "hash")
	require.ErrorContains(t, err, "did not answer in time")
	<-hook.isAnswered
}

// Scan visits exactly the keys that PickNames returns, whatever their type.
func TestScan(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for _, name := range []string{"a*b1", "a*b2", "a*b3", "axb1"} {
			require.NoError(t, client.Set(t.Context(), name, "value of "+name, time.Hour).Err())
		}
		require.NoError(t, client.RPush(t.Context(), "a*b4", "x").Err())
		shown := map[string]redisconn.Snapshot{}
		scan := redisconn.KeyScan{
			Pattern: redisconn.Literal("a*b") + "?", StartSize: 5,
			PickNames: func(names []string) ([]string, bool) {
				return slices.DeleteFunc(names, func(name string) bool { return name == "a*b3" }), true
			},
			VisitKey: func(name string, snapshot redisconn.Snapshot) error { shown[name] = snapshot; return nil },
		}
		require.NoError(t, newConn(t, client, 0).Scan(t.Context(), scan))
		require.Len(t, shown, 3)
		require.Equal(t, "value", string(shown["a*b1"].Start))
		require.Equal(t, int64(len("value of a*b2")), shown["a*b2"].Size)
		require.Positive(t, shown["a*b2"].Expiry)
		require.Empty(t, shown["a*b4"].Start)
		require.Equal(t, redisconn.NoExpiry, shown["a*b4"].Expiry)
	})
}
