package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// UnsafeSetting is a setting of a store that breaks a part of the promise.
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

// Check asks every master for the settings that the guarantees of the store rest on. Call it at start-up. It returns
// all findings joined. Each is an [*UnsafeSetting] to weigh: not every service needs its records to survive a loss of
// power. A setting that the server does not report, as with some hosted services, is skipped.
//
// Through a *redis.AutoPipeliner on a Cluster it asks one master only.
func (s *RedisStore) Check(ctx context.Context) error {
	if s.fault != nil {
		return s.fault
	}
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return checkNode(ctx, s.client)
	}
	var (
		mu       sync.Mutex
		findings []error
	)
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		err := checkNode(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		findings = append(findings, err)
		return nil
	})
	if !cluster.Options().ContextTimeoutEnabled {
		findings = append(findings, &UnsafeSetting{"client", "ContextTimeoutEnabled", "false",
			"a server that does not answer holds up requests beyond StoreTimeout"})
	}
	if cluster.Options().ReadOnly { // which RouteByLatency and RouteRandomly include
		findings = append(findings, &UnsafeSetting{"client", "ReadOnly", "true",
			"large answers are read from replicas, and not found as long as those lag behind"})
	}
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
	}, "a loss of power forgets the last records"},
	{"min-replicas-to-write", func(n string, node settings) bool {
		return n != "0" || node["connected_slaves"] == "0"
	}, "a failover may lose records that were acknowledged"},
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

func checkNode(ctx context.Context, node redis.Cmdable) error {
	told, err := readSettings(ctx, node)
	if err != nil {
		return fmt.Errorf("idempotency: Redis: %w", err)
	}
	var findings []error
	for _, h := range hazards {
		if value, known := told[h.setting]; known && !h.safe(value, told) {
			findings = append(findings, &UnsafeSetting{nodeName(node), h.setting, value, h.risk})
		}
	}
	return errors.Join(findings...)
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
	for _, name := range []string{"appendfsync", "min-replicas-to-write"} { // INFO does not have these
		maps.Copy(told, node.ConfigGet(ctx, name).Val()) // nothing, if the server does not tell
	}
	return told, nil
}
