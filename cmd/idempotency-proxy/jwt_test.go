package main_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
)

func writePEM(t testing.TB, kind string, der []byte) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return file
}

func publicPEM(t testing.TB, key crypto.Signer) (file string) {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(t, err)
	return writePEM(t, "PUBLIC KEY", der)
}

func certificate(t testing.TB) (cert, key string) {
	t.Helper()
	signer := ecKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "proxy"}, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(signer)
	require.NoError(t, err)
	return writePEM(t, "CERTIFICATE", der), writePEM(t, "PRIVATE KEY", private)
}

func ecKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

func rsaKey(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	return key
}

// claims are those of a token for alice that is accepted, with changes.
func claims(changes ...any) jwt.MapClaims {
	hence := time.Now().Add(time.Hour).Unix()
	c := jwt.MapClaims{"iss": "https://issuer", "aud": "payments", "sub": "alice", "exp": hence}
	for i := 0; i < len(changes); i += 2 {
		if name := changes[i].(string); changes[i+1] == nil {
			delete(c, name)
		} else {
			c[name] = changes[i+1]
		}
	}
	return c
}

func token(t testing.TB, method jwt.SigningMethod, key any, c jwt.MapClaims, header ...string) string {
	t.Helper()
	made := jwt.NewWithClaims(method, c)
	for i := 0; i < len(header); i += 2 {
		made.Header[header[i]] = header[i+1]
	}
	signed, err := made.SignedString(key)
	require.NoError(t, err)
	return signed
}

func bearer(token string) request { return with("Authorization", "Bearer "+token) }

var issuer = []string{"-store", "memory:", "-jwt-issuer", "https://issuer", "-jwt-audience", "payments"}

// Each kind of key verifies tokens of its own algorithms, and of no others.
func TestTokens(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	rsaKey, ecKey := rsaKey(t), ecKey(t)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	secret := []byte(strings.Repeat("s", 32))
	secretFile := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secretFile, append(secret, '\n'), 0o600))
	cert, certKey := certificate(t)
	certPEM, err := os.ReadFile(certKey)
	require.NoError(t, err)
	block, _ := pem.Decode(certPEM)
	inCert, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(t, err)
	pkcs1 := writePEM(t, "RSA PUBLIC KEY", x509.MarshalPKCS1PublicKey(&rsaKey.PublicKey))
	for name, test := range map[string]struct {
		args   []string
		method jwt.SigningMethod
		key    any
	}{
		"RSA":         {[]string{"-jwt-key", publicPEM(t, rsaKey)}, jwt.SigningMethodRS256, rsaKey},
		"RSA-PSS":     {[]string{"-jwt-key", publicPEM(t, rsaKey)}, jwt.SigningMethodPS512, rsaKey},
		"PKCS 1":      {[]string{"-jwt-key", pkcs1}, jwt.SigningMethodRS384, rsaKey},
		"ECDSA":       {[]string{"-jwt-key", publicPEM(t, ecKey)}, jwt.SigningMethodES256, ecKey},
		"Ed25519":     {[]string{"-jwt-key", publicPEM(t, edKey)}, jwt.SigningMethodEdDSA, edKey},
		"certificate": {[]string{"-jwt-key", cert}, jwt.SigningMethodES256, inCert},
		"HMAC":        {[]string{"-jwt-secret", secretFile}, jwt.SigningMethodHS256, secret},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, upstream.URL, append(test.args, issuer...)...)
			alice := bearer(token(t, test.method, test.key, claims()))
			require.Equal(t, 201, p.post("/"+name, "x", keyed("k"), alice).status)
			renewed := bearer(token(t, test.method, test.key, claims("jti", "2")))
			require.True(t, p.post("/"+name, "x", keyed("k"), renewed).replayed)
			bob := bearer(token(t, test.method, test.key, claims("sub", "bob")))
			require.False(t, p.post("/"+name, "x", keyed("k"), bob).replayed)
			for _, forged := range []string{
				token(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, claims()),
				token(t, jwt.SigningMethodHS256, []byte("public"), claims()),
			} {
				require.Equal(t, 401, p.post("/"+name, "x", keyed("k"), bearer(forged)).status)
			}
		})
	}
}

// A forged or altered token names nobody.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	key := rsaKey(t)
	file := publicPEM(t, key)
	public, err := os.ReadFile(file)
	require.NoError(t, err)
	p := start(t, upstream.URL, append([]string{"-jwt-key", file}, issuer...)...)
	rs := func(c jwt.MapClaims, header ...string) string {
		return token(t, jwt.SigningMethodRS256, key, c, header...)
	}
	good := rs(claims())
	part := strings.Split(good, ".")
	require.Equal(t, 201, p.post("/", "x", keyed("k"), bearer(good)).status)

	bobs := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"bob"}`))
	past, future := time.Now().Add(-time.Hour).Unix(), time.Now().Add(time.Hour).Unix()
	for name, changes := range map[string][]request{
		"none":               {},
		"algorithm none":     {bearer(token(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, claims()))},
		"public key as HMAC": {bearer(token(t, jwt.SigningMethodHS256, public, claims()))},
		"trimmed as HMAC":    {bearer(token(t, jwt.SigningMethodHS256, bytes.TrimSpace(public), claims()))},
		"key in the token":   {bearer(token(t, jwt.SigningMethodRS256, rsaKey(t), claims(), "jku", upstream.URL))},
		"unknown extension":  {bearer(rs(claims(), "crit", "b64"))},
		"other key":          {bearer(token(t, jwt.SigningMethodRS256, rsaKey(t), claims()))},
		"no signature":       {bearer(part[0] + "." + part[1] + ".")},
		"other payload":      {bearer(part[0] + "." + bobs + "." + part[2])},
		"other issuer":       {bearer(rs(claims("iss", "https://mallory")))},
		"no issuer":          {bearer(rs(claims("iss", nil)))},
		"other audience":     {bearer(rs(claims("aud", "mail")))},
		"no audience":        {bearer(rs(claims("aud", nil)))},
		"expired":            {bearer(rs(claims("exp", past)))},
		"never expires":      {bearer(rs(claims("exp", nil)))},
		"not yet valid":      {bearer(rs(claims("nbf", future)))},
		"no name":            {bearer(rs(claims("sub", nil)))},
		"empty name":         {bearer(rs(claims("sub", "")))},
		"a number":           {bearer(rs(claims("sub", 1)))},
		"a list":             {bearer(rs(claims("sub", []string{"alice"})))},
		"two":                {bearer(good), bearer(good)},
		"two in a line":      {bearer(good + ", Bearer " + good)},
		"other scheme":       {with("Authorization", "Basic "+good)},
		"no scheme":          {with("Authorization", good)},
		"underscore":         {with("AUTHORIZATION_", "Bearer "+good)},
		"in a header":        {as("alice")},
	} {
		got := p.post("/", "x", append(changes, keyed("k"))...)
		require.Equal(t, 401, got.status, "%s: %s", name, got)
		require.Equal(t, "user-unknown", got.code(), name)
		require.True(t, strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Bearer"), name)
	}
	require.Equal(t, 1, upstream.count())
	require.True(t, p.post("/", "x", keyed("k"), with("Authorization", "bearer "+good)).replayed)
}

// The users of two issuers, whose proxies share a store, are different users.
func TestIssuersShareNoUsers(t *testing.T) {
	t.Parallel()
	redis := newRedis(t)
	upstream := serve(t, created)
	key := ecKey(t)
	for _, name := range []string{"https://one", "https://two"} {
		p := start(t, upstream.URL, "-store-file", redis, "-ignore-host",
			"-jwt-key", publicPEM(t, key), "-jwt-issuer", name, "-jwt-any-audience")
		as := bearer(token(t, jwt.SigningMethodES256, key, claims("iss", name, "aud", nil)))
		got := p.post("/", "x", keyed("k"), as)
		require.Equal(t, 201, got.status, got)
		require.False(t, got.replayed)
	}
}

// A key set comes from a file, or from a URL, where keys are found that were added later. A shared secret in it
// verifies nothing.
func TestKeySet(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	old, added := ecKey(t), ecKey(t)
	secret := []byte(strings.Repeat("s", 32))
	set := keySet(jwk("old", old), jwkSecret("shared", secret))
	file := filepath.Join(t.TempDir(), "keys.json")
	require.NoError(t, os.WriteFile(file, set, 0o600))
	rotated := keySet(jwk("old", old), jwk("added", added))
	current := make(chan []byte, 1)
	current <- set
	issuing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		keys := <-current
		current <- keys
		_, _ = w.Write(keys)
	}))
	t.Cleanup(issuing.Close)
	for _, source := range []string{file, issuing.URL} {
		p := start(t, upstream.URL, append([]string{"-jwt-jwks", source}, issuer...)...)
		accepted := func(method jwt.SigningMethod, key any, kid string) bool {
			got := p.post("/", "x", keyed(kid), bearer(token(t, method, key, claims(), "kid", kid)))
			require.Contains(t, []int{201, 401}, got.status, got)
			return got.status == 201
		}
		require.True(t, accepted(jwt.SigningMethodES256, old, "old"))
		require.False(t, accepted(jwt.SigningMethodES256, added, "old"))
		require.False(t, accepted(jwt.SigningMethodHS256, secret, "shared"))
		if source == issuing.URL {
			<-current
			current <- rotated
			require.True(t, accepted(jwt.SigningMethodES256, added, "added"))
		}
	}
}

// Keys that are read in the clear, or that verify nothing, are no keys.
func TestKeySetIsRefused(t *testing.T) {
	t.Parallel()
	inTheClear := httptest.NewServer(http.RedirectHandler("http://192.0.2.1/keys", http.StatusFound))
	t.Cleanup(inTheClear.Close)
	shared := keySet(jwkSecret("shared", []byte(strings.Repeat("s", 32))))
	for source, says := range map[string]string{
		inTheClear.URL: "want https", inFile(t, "{}"): "no public key", inFile(t, string(shared)): "no public key",
	} {
		args := append([]string{"-upstream", "http://127.0.0.1:1", "-listen", "127.0.0.1:0", "-jwt-jwks", source}, issuer...)
		status, _, stderr := try(t, nil, args...)
		require.Equal(t, 1, status, stderr)
		require.Contains(t, stderr, says)
	}
}

func keySet(keys ...map[string]string) []byte {
	text, _ := json.Marshal(map[string]any{"keys": keys})
	return text
}

func jwk(kid string, key *ecdsa.PrivateKey) map[string]string {
	point, _ := key.PublicKey.Bytes()
	encode := base64.RawURLEncoding.EncodeToString
	return map[string]string{
		"kty": "EC", "crv": "P-256", "kid": kid, "alg": "ES256", "x": encode(point[1:33]), "y": encode(point[33:]),
	}
}

func jwkSecret(kid string, secret []byte) map[string]string {
	return map[string]string{"kty": "oct", "kid": kid, "alg": "HS256", "k": base64.RawURLEncoding.EncodeToString(secret)}
}

// Anybody can send a token with a key ID that nobody knows. Such tokens have the key set read at most once in ten seconds, and
// keep no rotated key away for longer than that.
func TestUnknownKeyIDs(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	old, rotated := ecKey(t), ecKey(t)
	var current atomic.Pointer[[]byte]
	publish := func(keys ...map[string]string) {
		set := keySet(keys...)
		current.Store(&set)
	}
	publish(jwk("old", old))
	var reads atomic.Int64
	issuing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reads.Add(1)
		_, _ = w.Write(*current.Load())
	}))
	t.Cleanup(issuing.Close)
	began := time.Now()
	p := start(t, upstream.URL, append([]string{"-jwt-jwks", issuing.URL}, issuer...)...)
	pay := func(key *ecdsa.PrivateKey, kid string) int {
		return p.post("/", "x", keyed("k"), bearer(token(t, jwt.SigningMethodES256, key, claims(), "kid", kid))).status
	}
	strangers := func(n int) {
		for i := range n {
			require.Equal(t, 401, pay(rotated, fmt.Sprint("unknown-", i)))
		}
	}
	require.Equal(t, 201, pay(old, "old"))
	strangers(50)
	publish(jwk("rotated", rotated))
	strangers(50)
	eventually(t, "the rotated key verifies tokens", func() bool {
		strangers(10)
		return pay(rotated, "rotated") == 201
	})
	require.Equal(t, 401, pay(old, "old"), "this key was withdrawn")
	require.LessOrEqual(t, reads.Load(), 2+int64(time.Since(began)/(10*time.Second)), "one when it started")
}

// Many tokens with a rotated key come at once. All of them wait for the key set, which is read once.
func TestRotatedKeyOfManyTokens(t *testing.T) {
	t.Parallel()
	const tokens = 20
	upstream := serve(t, created)
	old, rotated := ecKey(t), ecKey(t)
	var reads atomic.Int64
	read := make(chan struct{})
	issuing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if reads.Add(1) == 1 {
			_, _ = w.Write(keySet(jwk("old", old)))
			return
		}
		<-read
		_, _ = w.Write(keySet(jwk("rotated", rotated)))
	}))
	t.Cleanup(issuing.Close)
	release := sync.OnceFunc(func() { close(read) })
	t.Cleanup(release)
	p := start(t, upstream.URL, append([]string{"-jwt-jwks", issuing.URL}, issuer...)...)
	statuses := make(chan int, tokens)
	for i := range tokens {
		changes := []request{keyed(fmt.Sprint(i)), bearer(token(t, jwt.SigningMethodES256, rotated, claims(), "kid", "rotated"))}
		go func() { statuses <- p.post("/", "x", changes...).status }()
	}
	eventually(t, "all of them wait", func() bool {
		return strings.Contains(get(t, p.admin+"/metrics").body, fmt.Sprintf("idempotency_proxy_requests_running %d\n", tokens))
	})
	release()
	for range tokens {
		require.Equal(t, 201, <-statuses)
	}
	require.EqualValues(t, 2, reads.Load())
}
