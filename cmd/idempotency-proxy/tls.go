package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// serverTLS returns what the proxy shows its clients, and asks of them; nil without -tls-cert.
func (c *config) serverTLS(log *slog.Logger) (*tls.Config, error) {
	if c.tlsCert == "" {
		return nil, nil
	}
	pair, err := loadPair(c.tlsCert, c.tlsKey, log)
	if err != nil {
		return nil, fmt.Errorf("-tls-cert: %w", err)
	}
	settings := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.current(), nil },
	}
	if c.tlsClientCA != "" {
		settings.ClientAuth = tls.RequireAndVerifyClientCert
		if settings.ClientCAs, err = authorities(c.tlsClientCA); err != nil {
			return nil, fmt.Errorf("-tls-client-ca: %w", err)
		}
	}
	return settings, nil
}

// upstreamTLS returns what the proxy shows the service, and accepts from it.
func (c *config) upstreamTLS(log *slog.Logger) (*tls.Config, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if c.upstreamCA != "" {
		if settings.RootCAs, err = authorities(c.upstreamCA); err != nil {
			return nil, fmt.Errorf("-upstream-ca: %w", err)
		}
	}
	if c.upstreamCert != "" {
		pair, err := loadPair(c.upstreamCert, c.upstreamKey, log)
		if err != nil {
			return nil, fmt.Errorf("-upstream-cert: %w", err)
		}
		settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.current(), nil }
	}
	return settings, nil
}

// authorities reads certificates that others are signed with.
func authorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("no certificate in " + file)
	}
	return pool, nil
}

// pair is a certificate with its key, in files that somebody renews. While they cannot be used, or do not belong together
// yet, the last ones that did are used.
type pair struct {
	cert, key string
	log       *slog.Logger

	mu     sync.Mutex
	looked time.Time // when the files were read last
	loaded *tls.Certificate
}

// rereadAfter is how old a certificate may be that is shown.
const rereadAfter = time.Second

func loadPair(cert, key string, log *slog.Logger) (*pair, error) {
	loaded, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	return &pair{cert: cert, key: key, log: log, looked: time.Now(), loaded: &loaded}, nil
}

// current returns the certificate for a handshake.
func (p *pair) current() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.looked) < rereadAfter {
		return p.loaded
	}
	p.looked = time.Now()
	loaded, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		p.log.Warn("certificate not renewed", "file", p.cert, "error", err)
		return p.loaded
	}
	p.loaded = &loaded
	return p.loaded
}
