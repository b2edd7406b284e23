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

// openRedis opens one server, a Cluster, or what Sentinel names.
func (a *app) openRedis(address string) (*opened, error) {
	u, err := url.Parse(address)
	if err != nil { // which would show a password
		return nil, errors.New(redisVariable + ": not a URL")
	}
	client, servers, err := a.redisClient(address, u.Query())
	if err != nil {
		return nil, fmt.Errorf("the URL of Redis: %w", err)
	}
	s := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: a.line.Prefix, Replicas: a.line.Replicas})
	return &opened{
		store: s, name: "Redis at " + visible.Text(servers), close: func() { _ = client.Close() },
	}, nil
}

// dialTries is how often a client tries to connect for each of its tries at a command. The default is for services.
const dialTries = 1

// redisClient returns the client that a URL asks for, and where it connects to.
func (a *app) redisClient(address string, query url.Values) (redis.UniversalClient, string, error) {
	password, _ := a.env("REDISCLI_AUTH")
	switch {
	case query.Has("master_name"):
		opts, err := redis.ParseFailoverURL(address)
		if err != nil {
			return nil, "", err
		}
		opts.Password, opts.SentinelPassword = cmp.Or(opts.Password, password), cmp.Or(opts.SentinelPassword, password)
		opts.ContextTimeoutEnabled, opts.DialerRetries = true, cmp.Or(opts.DialerRetries, dialTries)
		return redis.NewFailoverClient(opts), opts.MasterName + " of " + strings.Join(opts.SentinelAddrs, ", "), nil
	case a.line.Cluster || query.Has("addr"):
		opts, err := redis.ParseClusterURL(address)
		if err != nil {
			return nil, "", err
		}
		opts.Password = cmp.Or(opts.Password, password)
		opts.ContextTimeoutEnabled, opts.DialerRetries = true, cmp.Or(opts.DialerRetries, dialTries)
		return redis.NewClusterClient(opts), strings.Join(opts.Addrs, ", "), nil
	default:
		opts, err := redis.ParseURL(address)
		if err != nil {
			return nil, "", err
		}
		opts.Password = cmp.Or(opts.Password, password)
		opts.ContextTimeoutEnabled, opts.DialerRetries = true, cmp.Or(opts.DialerRetries, dialTries)
		return redis.NewClient(opts), opts.Addr, nil
	}
}
