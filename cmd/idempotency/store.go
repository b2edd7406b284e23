package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
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
	databaseVariable = "DATABASE_URL"
)

// open opens the store that the flag or the environment names. It does not connect yet. The error reports the faults, too,
// that the command has found in its own flags.
func (a *app) open(faults ...error) (*opened, error) {
	faults = append(faults, positive("--timeout", a.line.Timeout))
	address, kind, err := a.address()
	if err := errors.Join(append(faults, err)...); err != nil {
		return nil, &failure{exitUsage, err}
	}
	openers := map[string]func(string) (*opened, error){
		"redis": a.openRedis, "postgres": a.openPostgres, "mysql": a.openMySQL, "sqlite": a.openSQLite,
		"dynamodb": a.openDynamoDB,
	}
	s, err := openers[kind](address)
	if _, weighed := errors.AsType[*failure](err); err != nil && !weighed {
		err = &failure{exitUsage, err}
	}
	return s, err
}

func positive[N int | time.Duration](name string, n N) error {
	if n <= 0 {
		return fmt.Errorf("%s must be positive", name)
	}
	return nil
}

// address returns where the store is, and of which kind it is. The address of PostgreSQL and DynamoDB may be empty: pgx and the
// SDK have variables of their own.
func (a *app) address() (address, kind string, err error) {
	redis, hasRedis := a.env(redisVariable)
	database, hasDatabase := a.env(databaseVariable)
	kind = cmp.Or(kindOf(database), "postgres") // which may also be in words, such as host=localhost
	switch asked := a.line.Store; {
	case asked == "" && hasRedis && hasDatabase:
		return "", "", errors.New("the environment has " + redisVariable + " and " + databaseVariable +
			": want --store redis or --store " + kind)
	case hasRedis && (asked == "redis" || asked == ""):
		return redis, "redis", nil
	case asked == "redis":
		return "", "", errors.New(redisVariable + " is not set")
	case !hasDatabase && (asked == "postgres" || asked == "dynamodb"):
		return "", asked, nil
	case asked == kind, asked == "" && hasDatabase:
		return database, kind, nil
	case slices.Contains([]string{"postgres", "mysql", "sqlite", "dynamodb"}, asked):
		return "", "", errors.New(databaseVariable + " is not set, or is of another kind than --store says")
	case asked == "":
		return "", "", errors.New("which store? want --store, " + redisVariable + " or " + databaseVariable)
	default:
		kind, err = named(asked)
		return asked, kind, err
	}
}

// named returns the kind of the store that a flag names by its address.
func named(address string) (kind string, err error) {
	u, err := url.Parse(address)
	switch kind = kindOf(address); {
	case kind == "sqlite":
		return kind, nil
	case kind == "" && isFile(address):
		return "sqlite", nil
	case err != nil: // which would show a password
		return "", errors.New("--store: not a URL")
	case hasPassword(u):
		return "", errors.New("--store has a password, which other users of the machine can see: use " + redisVariable +
			", " + databaseVariable + " or one of the other variables")
	case kind == "":
		return "", errors.New("--store: want redis://, rediss://, postgres://, mysql://, dynamodb://, sqlite: or a file that is there")
	}
	return kind, nil
}

// kindOf returns the kind of store that a URL is of, or nothing.
func kindOf(address string) string {
	scheme, _, _ := strings.Cut(address, ":")
	switch scheme {
	case "redis", "rediss":
		return "redis"
	case "postgres", "postgresql":
		return "postgres"
	case "mysql", "mariadb":
		return "mysql"
	case "sqlite", "dynamodb":
		return scheme
	}
	return ""
}

// isFile reports whether there is a file of that name.
func isFile(name string) bool {
	is, err := os.Stat(name)
	return err == nil && is.Mode().IsRegular()
}

func hasPassword(u *url.URL) bool {
	_, has := u.User.Password()
	for name := range u.Query() {
		has = has || strings.Contains(strings.ToLower(name), "password")
	}
	return has
}
