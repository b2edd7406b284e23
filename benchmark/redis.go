package benchmark

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
)

// The subjects on Redis.
var (
	// RawRedis is what a service would send that trusts its luck: no token is compared, nothing is hashed.
	RawRedis = Subject{Name: "raw SET NX + SET, GET", Role: Raw, Store: InRedis,
		Lacks: "no HTTP, fingerprint, token or headers",
		Open:  func(b *Backends, app *App) (*Target, error) { return rawRedis(b.Redis, app.Work), nil }}

	// RawScripts sends what the library sends, without the library.
	RawScripts = Subject{Name: "raw, the library's own commands", Role: Raw, Store: InRedis,
		Lacks: "no HTTP, and the same content each time",
		Open:  func(b *Backends, app *App) (*Target, error) { return rawScripts(b.Redis, app.Work) }}

	Redis = Subject{Name: "idempotency, Redis", Role: Library, Store: InRedis,
		Open: func(b *Backends, app *App) (*Target, error) {
			return overLibrary(idempotency.NewRedisStore(b.Redis, idempotency.RedisOptions{}), app)
		}}

	RedisPipeline = Subject{Name: "idempotency, Redis, AutoPipeline", Role: Library, Store: InRedis,
		Open: func(b *Backends, app *App) (*Target, error) {
			return overLibrary(idempotency.NewRedisStore(b.Pipeline, idempotency.RedisOptions{}), app)
		}}
)

const (
	lease = time.Minute
	ttl   = 24 * time.Hour
)

// rawHead is about as long as what a record has in front of the body.
var rawHead = strings.Repeat("x", 430-200)

func rawRedis(client *redis.Client, work Work) *Target {
	ctx, record := context.Background(), rawHead+string(work.answer())
	return rawTarget(func(c Call) func(string) error {
		if c.Path == Replay {
			return func(key string) error { return client.Get(ctx, key).Err() }
		}
		return func(key string) error {
			if err := client.SetArgs(ctx, key, rawHead, redis.SetArgs{Mode: "NX", TTL: lease}).Err(); err != nil {
				return err
			}
			return client.Set(ctx, key, record, ttl).Err()
		}
	})
}

// rawScripts records which commands the library sends for one request, and sends those with other keys.
func rawScripts(client *redis.Client, work Work) (*Target, error) {
	r := &commandRecorder{}
	hooked := redis.NewClient(redisOptions(client.Options().Addr))
	defer hooked.Close()
	hooked.AddHook(r)
	target, err := overLibrary(idempotency.NewRedisStore(hooked, idempotency.RedisOptions{}), NewApp(work))
	if err != nil {
		return nil, err
	}
	w := target.Worker(Call{First, work})
	defer w.Close()
	keys := NewKeys(2)
	_ = w.Do(keys[0]) // loads the scripts
	flights := map[Path][]flight{
		First:  r.during(func() { _ = w.Do(keys[1]) }),
		Replay: r.during(func() { _ = w.Do(keys[1]) }),
	}
	for path, recorded := range flights {
		if len(recorded) == 0 {
			return nil, fmt.Errorf("benchmark: no command recorded for %s", path)
		}
	}
	return rawTarget(func(c Call) func(string) error {
		return func(key string) error { return resend(client, flights[c.Path], key) }
	}), nil
}

// flight is the arguments of the commands that go out together.
type flight [][]any

// resend sends the commands, with key in place of the recorded one.
func resend(client *redis.Client, flights []flight, key string) error {
	ctx := context.Background()
	for _, flight := range flights {
		if len(flight) == 1 {
			if err := client.Process(ctx, redis.NewCmd(ctx, rekey(flight[0], key)...)); err != nil {
				return err
			}
			continue
		}
		pipe := client.Pipeline()
		for _, args := range flight {
			_ = pipe.Process(ctx, redis.NewCmd(ctx, rekey(args, key)...)) // fails in Exec, if at all
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rekey puts key in place of the name between braces in every argument that has one.
func rekey(args []any, key string) []any {
	args = append([]any(nil), args...)
	for i, arg := range args {
		name, ok := arg.(string)
		before, rest, open := strings.Cut(name, "{")
		_, after, closed := strings.Cut(rest, "}")
		if ok && open && closed && len(name) < 256 {
			args[i] = before + "{" + key + "}" + after
		}
	}
	return args
}

// commandRecorder is a hook that keeps the arguments of commands.
type commandRecorder struct {
	mu      sync.Mutex
	flights []flight
}

func (r *commandRecorder) during(f func()) []flight {
	r.flights = nil
	f()
	return r.flights
}

func (r *commandRecorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *commandRecorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.record(cmd)
		return next(ctx, cmd)
	}
}

func (r *commandRecorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.record(cmds...)
		return next(ctx, cmds)
	}
}

func (r *commandRecorder) record(cmds ...redis.Cmder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var f flight
	for _, cmd := range cmds {
		if cmd.Name() != "hello" && cmd.Name() != "client" { // which open a connection
			f = append(f, cmd.Args())
		}
	}
	if len(f) > 0 {
		r.flights = append(r.flights, f)
	}
}

// serverTime returns how long Redis has worked on a command, by its own statistics.
func (b *Backends) serverTime(ctx context.Context, command string) (time.Duration, error) {
	info, err := b.Redis.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	_, stats, ok := strings.Cut(info, "cmdstat_"+command+":")
	if !ok {
		return 0, nil
	}
	var calls, micros int64
	if _, err := fmt.Sscanf(stats, "calls=%d,usec=%d", &calls, &micros); err != nil {
		return 0, fmt.Errorf("benchmark: statistics of %s: %w", command, err)
	}
	return time.Duration(micros) * time.Microsecond, nil
}
