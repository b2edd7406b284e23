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

// openableStore is the interface of all stores that the commands use.
type openableStore interface {
	idempotency.Resolver
	Check(ctx context.Context) error
}

// openedStore is a store with its client. loadLargestUsers is nil if the store has no totals of users.
type openedStore struct {
	openableStore
	description      string // for people, without a credential
	loadLargestUsers func(ctx context.Context, limit int) ([]pgxstore.UserTotal, error)
	closeClient      func()
}

const (
	redisVariable    = "REDIS_URL"
	databaseVariable = "DATABASE_URL"
)

// openStore opens the store that --store or the environment names. Most stores connect only when a command calls them. The error
// also reports faults, which are the faults of the flags of the command.
func (a *app) openStore(faults ...error) (*openedStore, error) {
	faults = append(faults, requirePositive("--timeout", a.flags.Timeout))
	address, kind, err := a.findAddress()
	if err := errors.Join(append(faults, err)...); err != nil {
		return nil, &exitError{exitUsage, err}
	}
	openers := map[string]func(string) (*openedStore, error){
		"redis": a.openRedis, "postgres": a.openPostgres, "mysql": a.openMySQL, "sqlite": a.openSQLite,
		"dynamodb": a.openDynamoDB,
	}
	store, err := openers[kind](address)
	if _, hasStatus := errors.AsType[*exitError](err); err != nil && !hasStatus {
		err = &exitError{exitUsage, err}
	}
	return store, err
}

func requirePositive[N int | time.Duration](name string, n N) error {
	if n <= 0 {
		return fmt.Errorf("%s must be positive", name)
	}
	return nil
}

// findAddress returns address and kind of the store. The address of PostgreSQL and DynamoDB may be empty, because pgx and the SDK
// read environment variables of their own.
func (a *app) findAddress() (address, kind string, err error) {
	redis, hasRedis := a.lookupEnv(redisVariable)
	database, hasDatabase := a.lookupEnv(databaseVariable)
	kind = cmp.Or(storeKind(database), "postgres") // DATABASE_URL may also be keywords such as host=localhost
	switch requested := a.flags.Store; {
	case requested == "" && hasRedis && hasDatabase:
		return "", "", errors.New("the environment has " + redisVariable + " and " + databaseVariable +
			": want --store redis or --store " + kind)
	case hasRedis && (requested == "redis" || requested == ""):
		return redis, "redis", nil
	case requested == "redis":
		return "", "", errors.New(redisVariable + " is not set")
	case !hasDatabase && (requested == "postgres" || requested == "dynamodb"):
		return "", requested, nil
	case requested == kind, requested == "" && hasDatabase:
		return database, kind, nil
	case slices.Contains([]string{"postgres", "mysql", "sqlite", "dynamodb"}, requested):
		return "", "", errors.New(databaseVariable + " is not set, or is of another kind than --store says")
	case requested == "":
		return "", "", errors.New("which store? want --store, " + redisVariable + " or " + databaseVariable)
	default:
		kind, err = parseStoreFlag(requested)
		return requested, kind, err
	}
}

// parseStoreFlag returns the kind of the store whose address is in --store.
func parseStoreFlag(address string) (kind string, err error) {
	u, err := url.Parse(address)
	switch kind = storeKind(address); {
	case kind == "sqlite":
		return kind, nil
	case kind == "" && isFile(address):
		return "sqlite", nil
	case err != nil: // the text of err may contain a password
		return "", errors.New("--store: not a URL")
	case hasPassword(u):
		return "", errors.New("--store has a password, which other users of the machine can see: use " + redisVariable +
			", " + databaseVariable + " or one of the other variables")
	case kind == "":
		return "", errors.New("--store: want redis://, rediss://, postgres://, mysql://, dynamodb://, sqlite: or a file that is there")
	}
	return kind, nil
}

// storeKind returns the kind of store for the scheme of a URL, or "".
func storeKind(address string) string {
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

// isFile reports whether name is a regular file.
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
