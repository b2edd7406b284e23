package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// UnsafeSetting is a setting of a store, or of its server, that weakens what the store promises.
type UnsafeSetting struct {
	Node    string // the server, or "client"
	Setting string
	Value   string
	Risk    string // what may happen
}

// Error describes the setting and its risk.
func (e *UnsafeSetting) Error() string {
	return fmt.Sprintf("idempotency: %s: %s is %s: %s", e.Node, e.Setting, e.Value, e.Risk)
}

// Findings returns what the Check of a store has found, one by one, for a service that accepts some of it. Err is what
// Check has returned. There are none if it is nil.
func Findings(err error) []error {
	switch joined := err.(type) {
	case nil:
		return nil
	case interface{ Unwrap() []error }:
		return joined.Unwrap()
	default:
		return []error{err}
	}
}

// Check asks every master for the settings that the guarantees of the store rest on. Call it at start-up. It returns
// all findings joined, see [Findings]. Each is an [*UnsafeSetting] that you weigh: not every service needs its records to
// survive a loss of power. Any other error says that a server could not be asked. A setting that the server does not
// report, as with some hosted services, is skipped.
//
// It also compares the clock of each master with those of its replicas, and reports a difference of more than half a
// second. It asks each replica at the address that the master has for it, with the credentials of the client. A replica
// that does not answer within a second is skipped.
//
// Through a *redis.AutoPipeliner on a Cluster it asks one master only.
func (s *RedisStore) Check(ctx context.Context) error {
	if s.fault != nil {
		return s.fault
	}
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return errors.Join(s.checkNode(ctx, s.client)...)
	}
	var (
		mu       sync.Mutex
		findings []error
	)
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		found := s.checkNode(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		findings = append(findings, found...)
		return nil
	})
	return errors.Join(append(findings, err)...)
}

// hazard is a setting and the values that are safe for it.
type hazard struct {
	setting string
	safe    func(value string, node settings) bool
	risk    string
}

var hazards = []hazard{
	{"redis_version", atLeast62, "scripts need Redis 6.2"},
	{"role", is("master"), "a replica refuses claims"},
	{"maxmemory_policy", func(policy string, node settings) bool {
		return policy == "noeviction" || node["maxmemory"] == "0"
	}, "records are evicted when memory is short, and operations run again"},
	{"aof_enabled", is("1"), "a restart forgets records, and operations run again"},
	{"appendfsync", func(policy string, node settings) bool {
		return policy == "always" || node["aof_enabled"] != "1"
	}, "a loss of power forgets the last records; with everysec and a slow disk, so does a crash of Redis"},
	{"no-appendfsync-on-rewrite", func(value string, node settings) bool {
		return value == "no" || node["aof_enabled"] != "1"
	}, "a loss of power while the log is rewritten forgets the records since then"},
	{"min-replicas-to-write", func(_ string, node settings) bool {
		return node["connected_slaves"] == "0" || atLeast(node[asked], node["connected_slaves"])
	},
		"replication is asynchronous: a failover loses the last records that were acknowledged, and their operations run " +
			"again. By command it loses those of a second or more, unless the setting, or " +
			"RedisOptions.Replicas, is the number of replicas, or writes are paused (CLIENT PAUSE) before"},
	{"connected_slaves", func(connected string, node settings) bool { return atLeast(connected, node[asked]) },
		"it is less than RedisOptions.Replicas, so each first execution takes StoreTimeout"},
	{"WAIT", is(""), "no answer counts as stored, so each first execution takes StoreTimeout"},
}

// asked is not a setting of the server: it is RedisOptions.Replicas.
const asked = "Replicas"

// atLeast compares two numbers.
func atLeast(value, bound string) bool {
	a, _ := strconv.Atoi(value)
	b, _ := strconv.Atoi(bound)
	return a >= b
}

func is(safe string) func(string, settings) bool {
	return func(value string, _ settings) bool { return value == safe }
}

func atLeast62(version string, _ settings) bool {
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return err == nil && cmp.Or(cmp.Compare(major, 6), cmp.Compare(minor, 2)) >= 0
}

// settings are those that a server tells.
type settings map[string]string

func (s *RedisStore) checkNode(ctx context.Context, node redis.Cmdable) (findings []error) {
	told, err := readSettings(ctx, node)
	if err != nil {
		return []error{fmt.Errorf("idempotency: Redis: %w", err)}
	}
	told[asked] = strconv.Itoa(s.replicas)
	if client, ok := node.(*redis.Client); ok && s.replicas > 0 {
		if err := client.Do(ctx, "wait", 0, 1).Err(); err != nil {
			told["WAIT"] = err.Error()
		}
	}
	for _, h := range hazards {
		if value, known := told[h.setting]; known && !h.safe(value, told) {
			findings = append(findings, &UnsafeSetting{nodeName(node), h.setting, value, h.risk})
		}
	}
	return append(findings, checkClocks(ctx, node, told)...)
}

func nodeName(node redis.Cmdable) string {
	if c, ok := node.(*redis.Client); ok {
		return c.Options().Addr
	}
	return "Redis"
}

func readSettings(ctx context.Context, node redis.Cmdable) (settings, error) {
	info, err := node.Info(ctx).Result()
	if err != nil {
		return nil, err
	}
	told := make(settings)
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			told[name] = value
		}
	}
	// INFO does not have these.
	for _, name := range []string{"appendfsync", "no-appendfsync-on-rewrite", "min-replicas-to-write"} {
		maps.Copy(told, node.ConfigGet(ctx, name).Val()) // nothing, if the server does not tell
	}
	return told, nil
}
