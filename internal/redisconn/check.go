package redisconn

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Unsafe is a setting of a server that weakens the guarantees of the store.
type Unsafe struct{ Node, Setting, Value, Risk string }

// Check asks every master for its settings, for the rights of the user, and for the clocks of the master and its
// replicas. The result found has the unsafe settings, and failed has an error for each server that could not be
// asked.
func (c *Conn) Check(ctx context.Context, rights Rights) (found []Unsafe, failed []error) {
	cluster, ok := c.client.(*redis.ClusterClient)
	if !ok {
		return c.checkNode(ctx, c.client, rights, 1)
	}
	var nodes []commandClient
	var mu sync.Mutex
	err := cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, withDeadlines(node))
		return nil
	})
	if err != nil {
		failed = append(failed, err)
	}
	var checks sync.WaitGroup
	for _, node := range nodes {
		checks.Go(func() {
			nodeFound, nodeFailed := c.checkNode(ctx, node, rights, len(nodes))
			mu.Lock()
			defer mu.Unlock()
			found, failed = append(found, nodeFound...), append(failed, nodeFailed...)
		})
	}
	checks.Wait()
	return found, failed
}

// hazard is a setting with the values that are safe, and the risk of all other values.
type hazard struct {
	settingName string
	isSafe      func(value string, node settings) bool
	risk        string
}

var hazards = []hazard{
	{"redis_version", func(version string, _ settings) bool {
		major, _, _ := strings.Cut(version, ".")
		return atLeast(major, "7")
	}, "before Redis 7.0, each claim takes another round trip; before 6.2, the store cannot settle claims when memory is short"},
	{"role", isEqual("master"), "a replica refuses claims"},
	{"cluster_enabled", func(value string, node settings) bool { return value == "1" || node[mastersSetting] == "1" },
		"the server does not refuse keys of other servers: when ClusterOptions.ClusterSlots moves a key, its operation runs again"},
	{"maxmemory_policy", func(policy string, node settings) bool {
		return policy == "noeviction" || node["maxmemory"] == "0"
	}, "records are evicted when memory is short, and operations run again"},
	{"aof_enabled", isEqual("1"), "a restart forgets records, and operations run again"},
	{"appendfsync", func(policy string, node settings) bool {
		return policy == "always" || node["aof_enabled"] != "1"
	}, "a loss of power forgets the last records; with everysec and a slow disk, so does a crash of Redis"},
	{"no-appendfsync-on-rewrite", func(value string, node settings) bool {
		return value == "no" || node["aof_enabled"] != "1"
	}, "a loss of power while the log is rewritten forgets the records since then"},
	{"min-replicas-to-write", func(_ string, node settings) bool {
		return node["connected_slaves"] == "0" || atLeast(node[replicasSetting], node["connected_slaves"])
	},
		"replication is asynchronous: a failover loses the last records that were acknowledged, and their operations run " +
			"again. A failover by command loses the records of a second or more, unless the setting, or " +
			"RedisOptions.Replicas, is the number of replicas, or writes are paused (CLIENT PAUSE) before"},
	{"connected_slaves", func(connected string, node settings) bool { return atLeast(connected, node[replicasSetting]) },
		"fewer replicas than RedisOptions.Replicas are connected, so each first execution takes StoreTimeout"},
	{"WAIT", isEqual(""), "the server refuses WAIT, so no answer counts as stored, and each first execution takes StoreTimeout"},
}

// Two names in settings stand for properties of the client: replicasSetting for RedisOptions.Replicas, and
// mastersSetting for the number of masters.
const (
	replicasSetting = "Replicas"
	mastersSetting  = "masters"
)

// atLeast reports whether value is at least bound, both in decimal digits.
func atLeast(value, bound string) bool {
	a, _ := strconv.Atoi(value)
	b, _ := strconv.Atoi(bound)
	return a >= b
}

// isEqual returns a function that accepts only the value safe.
func isEqual(safe string) func(string, settings) bool {
	return func(value string, _ settings) bool { return value == safe }
}

// settings are the settings of a server by name.
type settings map[string]string

// checkNode checks node, one of masterCount masters.
func (c *Conn) checkNode(
	ctx context.Context, node redis.Cmdable, rights Rights, masterCount int,
) (found []Unsafe, failed []error) {
	found = c.checkRights(ctx, node, rights)
	reported, err := readSettings(ctx, node)
	if err != nil {
		return found, []error{fmt.Errorf("idempotency: Redis: %w", err)}
	}
	reported[replicasSetting], reported[mastersSetting] = strconv.Itoa(c.replicaCount), strconv.Itoa(masterCount)
	if client, ok := node.(*redis.Client); ok && c.replicaCount > 0 {
		if err := client.Do(ctx, "wait", 0, 1).Err(); err != nil {
			reported["WAIT"] = err.Error()
		}
	}
	for _, h := range hazards {
		if value, known := reported[h.settingName]; known && !h.isSafe(value, reported) {
			found = append(found, Unsafe{nodeName(node), h.settingName, value, h.risk})
		}
	}
	return append(found, checkClocks(ctx, node, reported)...), nil
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
	reported := make(settings)
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			reported[name] = value
		}
	}
	// INFO does not include the following settings.
	for _, name := range []string{"appendfsync", "no-appendfsync-on-rewrite", "min-replicas-to-write"} {
		maps.Copy(reported, node.ConfigGet(ctx, name).Val()) // empty if the server refuses CONFIG GET
	}
	return reported, nil
}
