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
	// minReadInterval is the minimum time between two reads after unknown key IDs. The interval limits the load on the key server,
	// because strangers can send any key ID, and also limits how long strangers can delay the read of a new key.
	minReadInterval = 10 * time.Second

	// readTimeout bounds a read, and so the wait of a request for a read.
	readTimeout = 5 * time.Second

	// renewInterval bounds how long a withdrawn key can verify tokens.
	renewInterval = time.Hour
)

// loadKeySet reads a key set from a file or from a URL. A key set from a URL is renewed regularly until ctx ends.
func loadKeySet(ctx context.Context, source string) (jwt.Keyfunc, []string, error) {
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
		return set.Keyfunc, setMethods, requirePublicKey(ctx, set)
	}
	if err := requireSecure(from); err != nil {
		return nil, nil, fmt.Errorf("-jwt-jwks: %w", err)
	}
	remote := &remoteKeySet{lifetime: ctx, sourceURL: source, httpClient: &http.Client{CheckRedirect: checkRedirect}}
	if remote.currentKeys, err = remote.readKeys(); err != nil {
		return nil, nil, fmt.Errorf("-jwt-jwks: %w", err)
	}
	go remote.renewRegularly()
	return remote.findKey, setMethods, requirePublicKey(ctx, remote.currentKeys)
}

// requirePublicKey returns an error for a set without a public key.
func requirePublicKey(ctx context.Context, set keyfunc.Keyfunc) error {
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

// remoteKeySet is a key set at a URL. A token with an unknown key ID starts a new read of the set, unless the last read began less
// than minReadInterval ago. A stranger can start a read, but all requests benefit from the result.
type remoteKeySet struct {
	lifetime   context.Context
	sourceURL  string
	httpClient *http.Client

	mu            sync.Mutex
	currentKeys   keyfunc.Keyfunc // result of the last successful read
	readStartedAt time.Time       // zero until the first read after the start
	readDone      chan struct{}   // closed at the end of the last read
}

// findKey is a [jwt.Keyfunc].
func (k *remoteKeySet) findKey(token *jwt.Token) (any, error) {
	key, err := k.loadedKeys().Keyfunc(token)
	if errors.Is(err, jwkset.ErrKeyNotFound) {
		<-k.startRead()
		key, err = k.loadedKeys().Keyfunc(token)
	}
	return key, err
}

func (k *remoteKeySet) loadedKeys() keyfunc.Keyfunc {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.currentKeys
}

// startRead starts a read of the set, unless the last read began less than minReadInterval ago. The channel is closed at the end of
// the last read.
func (k *remoteKeySet) startRead() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.readStartedAt) < minReadInterval {
		return k.readDone
	}
	done := make(chan struct{})
	k.readStartedAt, k.readDone = time.Now(), done
	go func() {
		defer close(done)
		keys, err := k.readKeys()
		if err != nil {
			slog.Warn("key set not read", "error", err)
			return
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.currentKeys = keys
	}()
	return done
}

// renewRegularly reads the set every renewInterval until lifetime ends, so that withdrawn keys stop verifying tokens.
func (k *remoteKeySet) renewRegularly() {
	ticker := time.NewTicker(renewInterval)
	defer ticker.Stop()
	for {
		select {
		case <-k.lifetime.Done():
			return
		case <-ticker.C:
			k.startRead()
		}
	}
}

// readKeys reads the current set.
func (k *remoteKeySet) readKeys() (keyfunc.Keyfunc, error) {
	storage, err := jwkset.NewStorageFromHTTP(k.sourceURL, jwkset.HTTPClientStorageOptions{
		Ctx: k.lifetime, Client: k.httpClient, HTTPTimeout: readTimeout,
	})
	if err != nil {
		return nil, err
	}
	return keyfunc.New(keyfunc.Options{Storage: storage})
}

// requireSecure returns an error for a URL without TLS, unless the host is the local machine.
func requireSecure(from *url.URL) error {
	if from.Scheme != "https" && !isLoopback(from.Hostname()) {
		return errors.New("want https, because whoever changes the keys can name any user")
	}
	return nil
}

func checkRedirect(r *http.Request, earlier []*http.Request) error {
	if len(earlier) > 5 {
		return errors.New("too many redirects")
	}
	return requireSecure(r.URL)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
