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

// writePublicPEM writes the public key to a file.
func writePublicPEM(t testing.TB, key crypto.Signer) (file string) {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(t, err)
	return writePEM(t, "PUBLIC KEY", der)
}

// writeCertificate makes a certificate with a new key, and writes both to files.
func writeCertificate(t testing.TB) (cert, key string) {
	t.Helper()
	signer := newECKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "proxy"}, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(signer)
	require.NoError(t, err)
	return writePEM(t, "CERTIFICATE", der), writePEM(t, "PRIVATE KEY", private)
}

func newECKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

func newRSAKey(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	return key
}

// newClaims returns the claims of an accepted token for alice, with changes. The changes are names and values, by turns.
// The value nil removes a claim.
func newClaims(changes ...any) jwt.MapClaims {
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

// signToken returns a signed token. header has names and values, by turns.
func signToken(t testing.TB, method jwt.SigningMethod, key any, c jwt.MapClaims, header ...string) string {
	t.Helper()
	made := jwt.NewWithClaims(method, c)
	for i := 0; i < len(header); i += 2 {
		made.Header[header[i]] = header[i+1]
	}
	signed, err := made.SignedString(key)
	require.NoError(t, err)
	return signed
}

// withBearer adds a token.
func withBearer(token string) requestOption { return withField("Authorization", "Bearer "+token) }

// issuerFlags makes the proxy accept the tokens of newClaims.
var issuerFlags = []string{"-store", "memory:", "-jwt-issuer", "https://issuer", "-jwt-audience", "payments"}

// Each kind of key verifies tokens with the algorithms of this kind, and no other tokens.
func TestTokens(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	rsaKey, ecKey := newRSAKey(t), newECKey(t)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	secret := []byte(strings.Repeat("s", 32))
	secretFile := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secretFile, append(secret, '\n'), 0o600))
	cert, certKey := writeCertificate(t)
	certPEM, err := os.ReadFile(certKey)
	require.NoError(t, err)
	block, _ := pem.Decode(certPEM)
	inCert, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(t, err)
	pkcs1 := writePEM(t, "RSA PUBLIC KEY", x509.MarshalPKCS1PublicKey(&rsaKey.PublicKey))
	for name, test := range map[string]struct {
		args       []string
		method     jwt.SigningMethod
		signingKey any
	}{
		"RSA":         {[]string{"-jwt-key", writePublicPEM(t, rsaKey)}, jwt.SigningMethodRS256, rsaKey},
		"RSA-PSS":     {[]string{"-jwt-key", writePublicPEM(t, rsaKey)}, jwt.SigningMethodPS512, rsaKey},
		"PKCS 1":      {[]string{"-jwt-key", pkcs1}, jwt.SigningMethodRS384, rsaKey},
		"ECDSA":       {[]string{"-jwt-key", writePublicPEM(t, ecKey)}, jwt.SigningMethodES256, ecKey},
		"Ed25519":     {[]string{"-jwt-key", writePublicPEM(t, edKey)}, jwt.SigningMethodEdDSA, edKey},
		"certificate": {[]string{"-jwt-key", cert}, jwt.SigningMethodES256, inCert},
		"HMAC":        {[]string{"-jwt-secret", secretFile}, jwt.SigningMethodHS256, secret},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, upstream.URL, append(test.args, issuerFlags...)...)
			alice := withBearer(signToken(t, test.method, test.signingKey, newClaims()))
			require.Equal(t, 201, p.post("/"+name, "x", withKey("k"), alice).status)
			renewed := withBearer(signToken(t, test.method, test.signingKey, newClaims("jti", "2")))
			require.True(t, p.post("/"+name, "x", withKey("k"), renewed).replayed)
			bob := withBearer(signToken(t, test.method, test.signingKey, newClaims("sub", "bob")))
			require.False(t, p.post("/"+name, "x", withKey("k"), bob).replayed)
			for _, forged := range []string{
				signToken(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, newClaims()),
				signToken(t, jwt.SigningMethodHS256, []byte("public"), newClaims()),
			} {
				require.Equal(t, 401, p.post("/"+name, "x", withKey("k"), withBearer(forged)).status)
			}
		})
	}
}

// A forged or altered token is refused.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	key := newRSAKey(t)
	file := writePublicPEM(t, key)
	public, err := os.ReadFile(file)
	require.NoError(t, err)
	p := startProxy(t, upstream.URL, append([]string{"-jwt-key", file}, issuerFlags...)...)
	rs := func(c jwt.MapClaims, header ...string) string {
		return signToken(t, jwt.SigningMethodRS256, key, c, header...)
	}
	good := rs(newClaims())
	part := strings.Split(good, ".")
	require.Equal(t, 201, p.post("/", "x", withKey("k"), withBearer(good)).status)

	bobs := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"bob"}`))
	past, future := time.Now().Add(-time.Hour).Unix(), time.Now().Add(time.Hour).Unix()
	for name, changes := range map[string][]requestOption{
		"no token":                   {},
		"algorithm none":             {withBearer(signToken(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, newClaims()))},
		"public key as HMAC":         {withBearer(signToken(t, jwt.SigningMethodHS256, public, newClaims()))},
		"trimmed public key as HMAC": {withBearer(signToken(t, jwt.SigningMethodHS256, bytes.TrimSpace(public), newClaims()))},
		"key in the token":           {withBearer(signToken(t, jwt.SigningMethodRS256, newRSAKey(t), newClaims(), "jku", upstream.URL))},
		"unknown extension":          {withBearer(rs(newClaims(), "crit", "b64"))},
		"wrong key":                  {withBearer(signToken(t, jwt.SigningMethodRS256, newRSAKey(t), newClaims()))},
		"no signature":               {withBearer(part[0] + "." + part[1] + ".")},
		"payload of another token":   {withBearer(part[0] + "." + bobs + "." + part[2])},
		"other issuer":               {withBearer(rs(newClaims("iss", "https://mallory")))},
		"no issuer":                  {withBearer(rs(newClaims("iss", nil)))},
		"other audience":             {withBearer(rs(newClaims("aud", "mail")))},
		"no audience":                {withBearer(rs(newClaims("aud", nil)))},
		"expired":                    {withBearer(rs(newClaims("exp", past)))},
		"never expires":              {withBearer(rs(newClaims("exp", nil)))},
		"not yet valid":              {withBearer(rs(newClaims("nbf", future)))},
		"no subject":                 {withBearer(rs(newClaims("sub", nil)))},
		"empty subject":              {withBearer(rs(newClaims("sub", "")))},
		"number as subject":          {withBearer(rs(newClaims("sub", 1)))},
		"list as subject":            {withBearer(rs(newClaims("sub", []string{"alice"})))},
		"two tokens":                 {withBearer(good), withBearer(good)},
		"two tokens in a line":       {withBearer(good + ", Bearer " + good)},
		"other scheme":               {withField("Authorization", "Basic "+good)},
		"no scheme":                  {withField("Authorization", good)},
		"underscore":                 {withField("AUTHORIZATION_", "Bearer "+good)},
		"user header":                {withUser("alice")},
	} {
		got := p.post("/", "x", append(changes, withKey("k"))...)
		require.Equal(t, 401, got.status, "%s: %s", name, got)
		require.Equal(t, "user-unknown", got.problemCode(), name)
		require.True(t, strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Bearer"), name)
	}
	require.Equal(t, 1, upstream.requestCount())
	require.True(t, p.post("/", "x", withKey("k"), withField("Authorization", "bearer "+good)).replayed)
}

// The users of two issuers, whose proxies share a store, are different users.
func TestIssuersShareNoUsers(t *testing.T) {
	t.Parallel()
	redis := startRedis(t)
	upstream := startService(t, answerCreated)
	key := newECKey(t)
	for _, name := range []string{"https://one", "https://two"} {
		p := startProxy(t, upstream.URL, "-store-file", redis, "-ignore-host",
			"-jwt-key", writePublicPEM(t, key), "-jwt-issuer", name, "-jwt-any-audience")
		as := withBearer(signToken(t, jwt.SigningMethodES256, key, newClaims("iss", name, "aud", nil)))
		got := p.post("/", "x", withKey("k"), as)
		require.Equal(t, 201, got.status, got)
		require.False(t, got.replayed)
	}
}

// A key set comes from a file or from a URL. The proxy finds keys that are later added at the URL. A shared secret in the
// key set verifies no token.
func TestKeySet(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	old, added := newECKey(t), newECKey(t)
	secret := []byte(strings.Repeat("s", 32))
	set := encodeKeySet(encodeJWK("old", old), encodeSecretJWK("shared", secret))
	file := filepath.Join(t.TempDir(), "keys.json")
	require.NoError(t, os.WriteFile(file, set, 0o600))
	rotated := encodeKeySet(encodeJWK("old", old), encodeJWK("added", added))
	current := make(chan []byte, 1)
	current <- set
	issuing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		keys := <-current
		current <- keys
		_, _ = w.Write(keys)
	}))
	t.Cleanup(issuing.Close)
	for _, source := range []string{file, issuing.URL} {
		p := startProxy(t, upstream.URL, append([]string{"-jwt-jwks", source}, issuerFlags...)...)
		accepted := func(method jwt.SigningMethod, key any, kid string) bool {
			got := p.post("/", "x", withKey(kid), withBearer(signToken(t, method, key, newClaims(), "kid", kid)))
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

// The proxy refuses key sets over unencrypted HTTP, and key sets without a public key.
func TestKeySetIsRefused(t *testing.T) {
	t.Parallel()
	inTheClear := httptest.NewServer(http.RedirectHandler("http://192.0.2.1/keys", http.StatusFound))
	t.Cleanup(inTheClear.Close)
	shared := encodeKeySet(encodeSecretJWK("shared", []byte(strings.Repeat("s", 32))))
	for source, wantErr := range map[string]string{
		inTheClear.URL: "want https", writeFile(t, "{}"): "no public key", writeFile(t, string(shared)): "no public key",
	} {
		args := append([]string{"-upstream", "http://127.0.0.1:1", "-listen", "127.0.0.1:0", "-jwt-jwks", source}, issuerFlags...)
		status, _, stderr := runProgram(t, nil, args...)
		require.Equal(t, 1, status, stderr)
		require.Contains(t, stderr, wantErr)
	}
}

// encodeKeySet returns a JSON Web Key Set.
func encodeKeySet(keys ...map[string]string) []byte {
	text, _ := json.Marshal(map[string]any{"keys": keys})
	return text
}

// encodeJWK returns a JSON Web Key with the public key.
func encodeJWK(kid string, key *ecdsa.PrivateKey) map[string]string {
	point, _ := key.PublicKey.Bytes()
	encode := base64.RawURLEncoding.EncodeToString
	return map[string]string{
		"kty": "EC", "crv": "P-256", "kid": kid, "alg": "ES256", "x": encode(point[1:33]), "y": encode(point[33:]),
	}
}

// encodeSecretJWK returns a JSON Web Key with a shared secret.
func encodeSecretJWK(kid string, secret []byte) map[string]string {
	return map[string]string{"kty": "oct", "kid": kid, "alg": "HS256", "k": base64.RawURLEncoding.EncodeToString(secret)}
}

// Every client can send tokens with unknown key IDs. Such tokens make the proxy read the key set at most once in ten
// seconds, and delay the use of a rotated key by at most this time.
func TestUnknownKeyIDs(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	old, rotated := newECKey(t), newECKey(t)
	var current atomic.Pointer[[]byte]
	publish := func(keys ...map[string]string) {
		set := encodeKeySet(keys...)
		current.Store(&set)
	}
	publish(encodeJWK("old", old))
	var reads atomic.Int64
	issuing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reads.Add(1)
		_, _ = w.Write(*current.Load())
	}))
	t.Cleanup(issuing.Close)
	began := time.Now()
	p := startProxy(t, upstream.URL, append([]string{"-jwt-jwks", issuing.URL}, issuerFlags...)...)
	pay := func(key *ecdsa.PrivateKey, kid string) int {
		return p.post("/", "x", withKey("k"), withBearer(signToken(t, jwt.SigningMethodES256, key, newClaims(), "kid", kid))).status
	}
	sendUnknown := func(n int) {
		for i := range n {
			require.Equal(t, 401, pay(rotated, fmt.Sprint("unknown-", i)))
		}
	}
	require.Equal(t, 201, pay(old, "old"))
	sendUnknown(50)
	publish(encodeJWK("rotated", rotated))
	sendUnknown(50)
	requireEventually(t, "the rotated key verifies tokens", func() bool {
		sendUnknown(10)
		return pay(rotated, "rotated") == 201
	})
	require.Equal(t, 401, pay(old, "old"), "this key was withdrawn")
	require.LessOrEqual(t, reads.Load(), 2+int64(time.Since(began)/(10*time.Second)), "the proxy reads once at its start")
}

// Many tokens with a rotated key arrive concurrently. All of them wait for one read of the key set.
func TestRotatedKeyOfManyTokens(t *testing.T) {
	t.Parallel()
	const tokens = 20
	upstream := startService(t, answerCreated)
	old, rotated := newECKey(t), newECKey(t)
	var reads atomic.Int64
	read := make(chan struct{})
	issuing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if reads.Add(1) == 1 {
			_, _ = w.Write(encodeKeySet(encodeJWK("old", old)))
			return
		}
		<-read
		_, _ = w.Write(encodeKeySet(encodeJWK("rotated", rotated)))
	}))
	t.Cleanup(issuing.Close)
	release := sync.OnceFunc(func() { close(read) })
	t.Cleanup(release)
	p := startProxy(t, upstream.URL, append([]string{"-jwt-jwks", issuing.URL}, issuerFlags...)...)
	statuses := make(chan int, tokens)
	for i := range tokens {
		changes := []requestOption{withKey(fmt.Sprint(i)),
			withBearer(signToken(t, jwt.SigningMethodES256, rotated, newClaims(), "kid", "rotated"))}
		go func() { statuses <- p.post("/", "x", changes...).status }()
	}
	requireEventually(t, "all requests wait", func() bool {
		return strings.Contains(getURL(t, p.adminURL+"/metrics").body, fmt.Sprintf("idempotency_proxy_requests_running %d\n", tokens))
	})
	release()
	for range tokens {
		require.Equal(t, 201, <-statuses)
	}
	require.EqualValues(t, 2, reads.Load())
}
