package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// store is what the commands ask.
type store interface {
	idempotency.Resolver
	Check(ctx context.Context) error
}

// opened is a store with what is known of its server.
type opened struct {
	store
	name  string // for people, without a credential
	users func(ctx context.Context, limit int) ([]pgxstore.UserTotal, error)
	close func()
}

const (
	redisVariable    = "REDIS_URL"
	postgresVariable = "DATABASE_URL"
)

// open opens the store that the flag or the environment names. It does not connect yet. The error reports the faults, too,
// that the command has found in its own flags.
func (a *app) open(faults ...error) (*opened, error) {
	faults = append(faults, positive("--timeout", a.line.Timeout))
	address, kind, err := a.address()
	if err := errors.Join(append(faults, err)...); err != nil {
		return nil, &failure{exitUsage, err}
	}
	var s *opened
	if kind == "redis" {
		s, err = a.openRedis(address)
	} else {
		s, err = a.openPostgres(address)
	}
	if err != nil {
		return nil, &failure{exitUsage, err}
	}
	return s, nil
}

func positive[N int | time.Duration](name string, n N) error {
	if n <= 0 {
		return fmt.Errorf("%s must be positive", name)
	}
	return nil
}

// address returns where the store is, and whether it is Redis or PostgreSQL. The address may be empty: pgx has variables of
// its own.
func (a *app) address() (address, kind string, err error) {
	redis, hasRedis := a.env(redisVariable)
	postgres, hasPostgres := a.env(postgresVariable)
	asked := a.line.Store
	switch {
	case asked == "" && hasRedis && hasPostgres:
		return "", "", errors.New("the environment has " + redisVariable + " and " + postgresVariable +
			": want --store redis or --store postgres")
	case asked == "redis" && hasRedis, asked == "" && hasRedis:
		return redis, "redis", nil
	case asked == "redis":
		return "", "", errors.New(redisVariable + " is not set")
	case asked == "postgres", asked == "" && hasPostgres:
		return postgres, "postgres", nil
	case asked == "":
		return "", "", errors.New("which store? want --store, " + redisVariable + " or " + postgresVariable)
	}
	u, err := url.Parse(asked)
	if err != nil { // which would show a password
		return "", "", errors.New("--store: not a URL")
	}
	if hasPassword(u) {
		return "", "", errors.New("--store has a password, which other users of the machine can see: use " + redisVariable +
			", " + postgresVariable + " or one of the other variables")
	}
	switch u.Scheme {
	case "redis", "rediss":
		return asked, "redis", nil
	case "postgres", "postgresql":
		return asked, "postgres", nil
	default:
		return "", "", errors.New("--store: want redis://, rediss:// or postgres://")
	}
}

func hasPassword(u *url.URL) bool {
	_, has := u.User.Password()
	for name := range u.Query() {
		has = has || strings.Contains(strings.ToLower(name), "password")
	}
	return has
}
