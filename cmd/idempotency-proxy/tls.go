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

// serverTLS returns the TLS settings for clients, or nil without -tls-cert.
func (c *config) serverTLS(log *slog.Logger) (*tls.Config, error) {
	if c.tlsCert == "" {
		return nil, nil
	}
	certificate, err := loadCertificate(c.tlsCert, c.tlsKey, log)
	if err != nil {
		return nil, fmt.Errorf("-tls-cert: %w", err)
	}
	settings := &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return certificate.currentCertificate(), nil
		},
	}
	if c.tlsClientCA != "" {
		settings.ClientAuth = tls.RequireAndVerifyClientCert
		if settings.ClientCAs, err = loadAuthorities(c.tlsClientCA); err != nil {
			return nil, fmt.Errorf("-tls-client-ca: %w", err)
		}
	}
	return settings, nil
}

// upstreamTLS returns the TLS settings for the service.
func (c *config) upstreamTLS(log *slog.Logger) (*tls.Config, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if c.upstreamCA != "" {
		if settings.RootCAs, err = loadAuthorities(c.upstreamCA); err != nil {
			return nil, fmt.Errorf("-upstream-ca: %w", err)
		}
	}
	if c.upstreamCert != "" {
		certificate, err := loadCertificate(c.upstreamCert, c.upstreamKey, log)
		if err != nil {
			return nil, fmt.Errorf("-upstream-cert: %w", err)
		}
		settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate.currentCertificate(), nil
		}
	}
	return settings, nil
}

// loadAuthorities reads the certificates of certificate authorities.
func loadAuthorities(file string) (*x509.CertPool, error) {
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

// renewedCertificate is a certificate with its key in files that another program renews. While the files are unreadable or do not
// match, for example in the middle of a renewal, the last valid certificate remains in use.
type renewedCertificate struct {
	certFile, keyFile string
	logger            *slog.Logger

	mu          sync.Mutex
	readAt      time.Time // time of the last read
	certificate *tls.Certificate
}

// rereadInterval is the minimum time between two reads of the files.
const rereadInterval = time.Second

func loadCertificate(cert, key string, log *slog.Logger) (*renewedCertificate, error) {
	loaded, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	return &renewedCertificate{certFile: cert, keyFile: key, logger: log, readAt: time.Now(), certificate: &loaded}, nil
}

// currentCertificate returns the certificate for a handshake.
func (p *renewedCertificate) currentCertificate() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.readAt) < rereadInterval {
		return p.certificate
	}
	p.readAt = time.Now()
	loaded, err := tls.LoadX509KeyPair(p.certFile, p.keyFile)
	if err != nil {
		p.logger.Warn("certificate not renewed", "file", p.certFile, "error", err)
		return p.certificate
	}
	p.certificate = &loaded
	return p.certificate
}
