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

// The permitted algorithms for each type of key. A public key must never verify a token as a shared secret.
var (
	rsaMethods  = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
	hmacMethods = []string{"HS256", "HS384", "HS512"}
	setMethods  = append([]string{"ES256", "ES384", "ES512", "EdDSA"}, rsaMethods...)
)

// minSecretBytes is the minimum length of a shared secret (RFC 7518, section 3.2).
const minSecretBytes = 32

// tokenVerifier identifies users by a claim in their bearer token.
type tokenVerifier struct {
	parser        *jwt.Parser
	keyFunc       jwt.Keyfunc
	escapedIssuer string
	userClaim     string
}

// openVerifier reads the key and returns a UserFunc. stop ends the work of the UserFunc in the background.
func (c *jwtConfig) openVerifier() (_ idempotency.UserFunc, stop func(), err error) {
	ctx, stop := context.WithCancel(context.Background())
	var key jwt.Keyfunc
	var methods []string
	switch {
	case c.keyFile != "":
		key, methods, err = loadPublicKey(c.keyFile)
	case c.secretFile != "":
		key, methods, err = loadSharedSecret(c.secretFile)
	default:
		key, methods, err = loadKeySet(ctx, c.keySetSource)
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods(methods), jwt.WithIssuer(c.issuer), jwt.WithExpirationRequired(), jwt.WithLeeway(c.leeway),
		jwt.WithStrictDecoding(),
	}
	if !c.acceptsAnyAudience {
		options = append(options, jwt.WithAudience(c.audience))
	}
	t := &tokenVerifier{jwt.NewParser(options...), key, url.QueryEscape(c.issuer), c.userClaim}
	return t.userFromToken, stop, nil
}

// userFromToken is a UserFunc. The user ID includes the issuer, because two proxies with different issuers may share a store.
func (t *tokenVerifier) userFromToken(r *http.Request) (string, error) {
	token, err := bearerToken(r)
	if err != nil {
		return "", err
	}
	claims := make(jwt.MapClaims)
	parsed, err := t.parser.ParseWithClaims(token, claims, t.keyFunc)
	if err != nil {
		return "", refuseToken(err)
	}
	if _, critical := parsed.Header["crit"]; critical { // a verifier must reject unknown critical extensions (RFC 7515, section 4.1.11)
		return "", refuseToken(errors.New("the token has an extension that must be understood"))
	}
	name, ok := claims[t.userClaim].(string)
	if !ok || name == "" {
		return "", refuseToken(fmt.Errorf("claim %q is not a string with a name in it", t.userClaim))
	}
	return t.escapedIssuer + " " + name, nil
}

// bearerToken returns the only token of a request. Two tokens are an error, because the service might read the other token.
func bearerToken(r *http.Request) (string, error) {
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

// refuseToken returns the refusal by RFC 6750, section 3.1. The client never sees cause.
func refuseToken(cause error) error {
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

func loadSharedSecret(file string) (jwt.Keyfunc, []string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("-jwt-secret: %w", err)
	}
	secret := []byte(strings.TrimRight(string(text), "\r\n"))
	if len(secret) < minSecretBytes {
		return nil, nil, fmt.Errorf("-jwt-secret: %d bytes are too few, want %d", len(secret), minSecretBytes)
	}
	if strings.HasPrefix(string(secret), "-----BEGIN") {
		return nil, nil, errors.New("-jwt-secret: the file has a key in PEM, which belongs to -jwt-key")
	}
	return constantKey(secret), hmacMethods, nil
}

func loadPublicKey(file string) (jwt.Keyfunc, []string, error) {
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
		return constantKey(key), rsaMethods, nil
	case ed25519.PublicKey:
		return constantKey(key), []string{"EdDSA"}, nil
	case *ecdsa.PublicKey:
		method, ok := map[elliptic.Curve]string{
			elliptic.P256(): "ES256", elliptic.P384(): "ES384", elliptic.P521(): "ES512",
		}[key.Curve]
		if ok {
			return constantKey(key), []string{method}, nil
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

func constantKey(key any) jwt.Keyfunc { return func(*jwt.Token) (any, error) { return key, nil } }
