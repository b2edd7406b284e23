package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
)

const (
	// readInterval is the least time between two reads for the sake of unknown key IDs. It bounds what strangers, who can
	// send any key ID, ask of the server with the keys, and how long they keep a new key away.
	readInterval = 10 * time.Second

	// readTimeout bounds a read, and so how long a request waits for one.
	readTimeout = 5 * time.Second

	// renewInterval is how long a withdrawn key may still verify tokens.
	renewInterval = time.Hour
)

// keySet reads a key set from a file once, or from a URL again and again until ctx ends.
func keySet(ctx context.Context, source string) (jwt.Keyfunc, []string, error) {
	from, err := url.Parse(source)
	if err != nil || from.Scheme != "http" && from.Scheme != "https" {
		text, err := os.ReadFile(source)
		if err != nil {
			return nil, nil, fmt.Errorf("-jwt-jwks: %w", err)
		}
		set, err := keyfunc.NewJWKSetJSON(text)
		if err != nil {
			return nil, nil, fmt.Errorf("-jwt-jwks: %w", err)
		}
		return set.Keyfunc, setMethods, checkPublic(ctx, set)
	}
	if err := checkSecure(from); err != nil {
		return nil, nil, fmt.Errorf("-jwt-jwks: %w", err)
	}
	remote := &remoteKeys{ctx: ctx, url: source, client: &http.Client{CheckRedirect: checkRedirect}}
	if remote.keys, err = remote.read(); err != nil {
		return nil, nil, fmt.Errorf("-jwt-jwks: %w", err)
	}
	go remote.renew()
	return remote.keyOf, setMethods, checkPublic(ctx, remote.keys)
}

// checkPublic refuses a set without a key that can verify a token.
func checkPublic(ctx context.Context, set keyfunc.Keyfunc) error {
	all, err := set.VerificationKeySet(ctx)
	if err != nil {
		return fmt.Errorf("-jwt-jwks: %w", err)
	}
	for _, key := range all.Keys {
		if _, shared := key.([]byte); !shared {
			return nil
		}
	}
	return errors.New("-jwt-jwks: no public key in the set")
}

// remoteKeys is a key set at a URL. If a token has an unknown key ID, the set is read again, unless the last read began less
// than readInterval ago. A stranger can cause that read, but it has the keys for everybody.
type remoteKeys struct {
	ctx    context.Context
	url    string
	client *http.Client

	mu       sync.Mutex
	keys     keyfunc.Keyfunc // as the last successful read found them
	readFrom time.Time       // when the last read began; zero if it was the one at the start
	readDone chan struct{}   // closed when that read has ended
}

// keyOf is a [jwt.Keyfunc].
func (k *remoteKeys) keyOf(token *jwt.Token) (any, error) {
	key, err := k.current().Keyfunc(token)
	if errors.Is(err, jwkset.ErrKeyNotFound) {
		<-k.refresh()
		key, err = k.current().Keyfunc(token)
	}
	return key, err
}

func (k *remoteKeys) current() keyfunc.Keyfunc {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys
}

// refresh begins to read the set, unless the last read began less than readInterval ago. The channel is closed when the last
// read has ended.
func (k *remoteKeys) refresh() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.readFrom) < readInterval {
		return k.readDone
	}
	done := make(chan struct{})
	k.readFrom, k.readDone = time.Now(), done
	go func() {
		defer close(done)
		keys, err := k.read()
		if err != nil {
			slog.Warn("key set not read", "error", err)
			return
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.keys = keys
	}()
	return done
}

// renew reads the set every renewInterval until ctx ends, so that withdrawn keys do not verify tokens for ever.
func (k *remoteKeys) renew() {
	ticker := time.NewTicker(renewInterval)
	defer ticker.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-ticker.C:
			k.refresh()
		}
	}
}

// read returns the set as it is now.
func (k *remoteKeys) read() (keyfunc.Keyfunc, error) {
	storage, err := jwkset.NewStorageFromHTTP(k.url, jwkset.HTTPClientStorageOptions{
		Ctx: k.ctx, Client: k.client, HTTPTimeout: readTimeout,
	})
	if err != nil {
		return nil, err
	}
	return keyfunc.New(keyfunc.Options{Storage: storage})
}

// checkSecure refuses a URL that is read in the clear.
func checkSecure(from *url.URL) error {
	if from.Scheme != "https" && !isLoopback(from.Hostname()) {
		return errors.New("want https, because whoever changes the keys can name any user")
	}
	return nil
}

func checkRedirect(r *http.Request, earlier []*http.Request) error {
	if len(earlier) > 5 {
		return errors.New("too many redirects")
	}
	return checkSecure(r.URL)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
