package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/golang-jwt/jwt/v5"

	"github.com/idempotency-go/idempotency"
)

// The algorithms that may verify with a key of each type, and no others: a public key is never taken for a shared
// secret.
var (
	rsaMethods  = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
	hmacMethods = []string{"HS256", "HS384", "HS512"}
	setMethods  = append([]string{"ES256", "ES384", "ES512", "EdDSA"}, rsaMethods...)
)

// leastSecret is the least length of a shared secret (RFC 7518, section 3.2).
const leastSecret = 32

// tokens names users by a claim of their bearer token.
type tokens struct {
	parser *jwt.Parser
	key    jwt.Keyfunc
	issuer string
	claim  string
}

// open reads the key, and returns the UserFunc and what ends its work in the background.
func (c *jwtConfig) open() (_ idempotency.UserFunc, stop func(), err error) {
	ctx, stop := context.WithCancel(context.Background())
	var key jwt.Keyfunc
	var methods []string
	switch {
	case c.key != "":
		key, methods, err = publicKey(c.key)
	case c.secret != "":
		key, methods, err = sharedSecret(c.secret)
	default:
		key, methods, err = keySet(ctx, c.jwks)
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods(methods), jwt.WithIssuer(c.issuer), jwt.WithExpirationRequired(), jwt.WithLeeway(c.leeway),
		jwt.WithStrictDecoding(),
	}
	if !c.anyAudience {
		options = append(options, jwt.WithAudience(c.audience))
	}
	t := &tokens{jwt.NewParser(options...), key, url.QueryEscape(c.issuer), c.claim}
	return t.user, stop, nil
}

// user is a UserFunc. The issuer is a part of the name: two proxies with different issuers may share a store.
func (t *tokens) user(r *http.Request) (string, error) {
	token, err := bearer(r)
	if err != nil {
		return "", err
	}
	claims := make(jwt.MapClaims)
	parsed, err := t.parser.ParseWithClaims(token, claims, t.key)
	if err != nil {
		return "", invalidToken(err)
	}
	if _, critical := parsed.Header["crit"]; critical { // an extension must be refused by who does not know it (RFC 7515)
		return "", invalidToken(errors.New("the token has an extension that must be understood"))
	}
	name, ok := claims[t.claim].(string)
	if !ok || name == "" {
		return "", invalidToken(fmt.Errorf("claim %q is not a string with a name in it", t.claim))
	}
	return t.issuer + " " + name, nil
}

// bearer returns the one token of a request. With two of them, the upstream might take the other one.
func bearer(r *http.Request) (string, error) {
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return "", errors.New("the request does not have one Authorization field")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", errors.New("the Authorization field has no bearer token")
	}
	return token, nil
}

// invalidToken is the answer of RFC 6750, section 3.1. Its cause is not shown.
func invalidToken(cause error) error {
	return &idempotency.Error{
		Status: http.StatusUnauthorized,
		Code:   "user-unknown",
		Title:  "Access token not accepted",
		Detail: "The bearer token is malformed, expired, or not meant for this service. " +
			"Send the request again with its key and a valid token.",
		Retry:  idempotency.RetrySameKey,
		Header: http.Header{"Www-Authenticate": {`Bearer error="invalid_token"`}},
		Err:    cause,
	}
}

func sharedSecret(file string) (jwt.Keyfunc, []string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("-jwt-secret: %w", err)
	}
	secret := []byte(strings.TrimRight(string(text), "\r\n"))
	if len(secret) < leastSecret {
		return nil, nil, fmt.Errorf("-jwt-secret: %d bytes are too few, want %d", len(secret), leastSecret)
	}
	if strings.HasPrefix(string(secret), "-----BEGIN") {
		return nil, nil, errors.New("-jwt-secret: the file has a key in PEM, which belongs to -jwt-key")
	}
	return always(secret), hmacMethods, nil
}

func publicKey(file string) (jwt.Keyfunc, []string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("-jwt-key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, nil, errors.New("-jwt-key: no PEM in the file")
	}
	key, err := parsePublicKey(block)
	if err != nil {
		return nil, nil, fmt.Errorf("-jwt-key: %w", err)
	}
	switch key := key.(type) {
	case *rsa.PublicKey:
		return always(key), rsaMethods, nil
	case ed25519.PublicKey:
		return always(key), []string{"EdDSA"}, nil
	case *ecdsa.PublicKey:
		method, ok := map[elliptic.Curve]string{
			elliptic.P256(): "ES256", elliptic.P384(): "ES384", elliptic.P521(): "ES512",
		}[key.Curve]
		if ok {
			return always(key), []string{method}, nil
		}
	}
	return nil, nil, fmt.Errorf("-jwt-key: a key of type %T cannot verify tokens", key)
}

func parsePublicKey(block *pem.Block) (any, error) {
	switch block.Type {
	case "PUBLIC KEY":
		return x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		return x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		return cert.PublicKey, nil
	default:
		return nil, fmt.Errorf("the PEM is a %q, want a PUBLIC KEY or a CERTIFICATE", block.Type)
	}
}

func always(key any) jwt.Keyfunc { return func(*jwt.Token) (any, error) { return key, nil } }
