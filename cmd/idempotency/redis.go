package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
)

// openRedis opens a single server, a Cluster, or the master that Sentinel names.
func (a *app) openRedis(address string) (*openedStore, error) {
	u, err := url.Parse(address)
	if err != nil { // the text of err may contain a password
		return nil, errors.New(redisVariable + ": not a URL")
	}
	client, servers, err := a.newRedisClient(address, u.Query())
	if err != nil {
		return nil, fmt.Errorf("the URL of Redis: %w", err)
	}
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: a.flags.Prefix, Replicas: a.flags.Replicas})
	return &openedStore{
		openableStore: store, description: "Redis at " + visible.Text(servers), closeClient: func() { _ = client.Close() },
	}, nil
}

// dialAttempts is the number of dials for each attempt at a command. The default of go-redis suits services. A person at a terminal
// wants the error at once.
const dialAttempts = 1

// newRedisClient returns the client for a URL, and a description of the servers.
func (a *app) newRedisClient(address string, query url.Values) (redis.UniversalClient, string, error) {
	password, _ := a.lookupEnv("REDISCLI_AUTH")
	switch {
	case query.Has("master_name"):
		opts, err := redis.ParseFailoverURL(address)
		if err != nil {
			return nil, "", err
		}
		opts.Password, opts.SentinelPassword = cmp.Or(opts.Password, password), cmp.Or(opts.SentinelPassword, password)
		opts.ContextTimeoutEnabled, opts.DialerRetries = true, cmp.Or(opts.DialerRetries, dialAttempts)
		return redis.NewFailoverClient(opts), opts.MasterName + " of " + strings.Join(opts.SentinelAddrs, ", "), nil
	case a.flags.Cluster || query.Has("addr"):
		opts, err := redis.ParseClusterURL(address)
		if err != nil {
			return nil, "", err
		}
		opts.Password = cmp.Or(opts.Password, password)
		opts.ContextTimeoutEnabled, opts.DialerRetries = true, cmp.Or(opts.DialerRetries, dialAttempts)
		return redis.NewClusterClient(opts), strings.Join(opts.Addrs, ", "), nil
	default:
		opts, err := redis.ParseURL(address)
		if err != nil {
			return nil, "", err
		}
		opts.Password = cmp.Or(opts.Password, password)
		opts.ContextTimeoutEnabled, opts.DialerRetries = true, cmp.Or(opts.DialerRetries, dialAttempts)
		return redis.NewClient(opts), opts.Addr, nil
	}
}
