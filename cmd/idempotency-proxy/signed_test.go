package main_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// signedFields are the fields that a signature of UCP covers (RFC 9421), besides method, authority and path.
var signedFields = []string{"ucp-agent", "idempotency-key", "content-digest", "content-type"}

// signatureInput is the value of Signature-Input without its label.
var signatureInput = `("@method" "@authority" "@path" "` + strings.Join(signedFields, `" "`) + `");keyid="platform-2026"`

// signatureBase returns what a signature of r covers, in the form of RFC 9421, section 2.5.
func signatureBase(r *http.Request) []byte {
	base := fmt.Sprintf("\"@method\": %s\n\"@authority\": %s\n\"@path\": %s\n", r.Method, r.Host, r.URL.EscapedPath())
	for _, name := range signedFields {
		base += fmt.Sprintf("%q: %s\n", name, strings.Join(r.Header.Values(name), ", "))
	}
	return []byte(base + `"@signature-params": ` + signatureInput)
}

func digestOf(body []byte) string {
	digest := sha256.Sum256(body)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(digest[:]) + ":"
}

// A service behind the proxy can verify the signature of a request, if the proxy keeps the host and sends the key. A replay has
// the signature of the first answer.
func TestSignedRequestArrivesUnchanged(t *testing.T) {
	t.Parallel()
	publicKey, privateKey, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	upstream := startService(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		signature, isSigned := strings.CutPrefix(r.Header.Get("Signature"), "sig1=:")
		decoded, decodeErr := base64.StdEncoding.DecodeString(strings.TrimSuffix(signature, ":"))
		if err != nil || decodeErr != nil || !isSigned || r.Header.Get("Signature-Input") != "sig1="+signatureInput ||
			r.Header.Get("Content-Digest") != digestOf(body) || !ed25519.Verify(publicKey, signatureBase(r), decoded) {
			http.Error(w, "signature_invalid", http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Digest", digestOf([]byte("made")))
		w.Header().Set("Signature-Input", `sig1=("@status" "content-digest");keyid="shop-2026"`)
		w.Header().Set("Signature", "sig1=:YWdyZWVk:")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "made")
	})
	sign := func(r *http.Request) {
		r.Header["Ucp-Agent"] = []string{`profile="https://platform.example/.well-known/ucp"`}
		r.Header["Content-Type"] = []string{"application/json"}
		body, err := r.GetBody()
		require.NoError(t, err)
		text, err := io.ReadAll(body)
		require.NoError(t, err)
		r.Header["Content-Digest"] = []string{digestOf(text)}
		r.Header["Signature-Input"] = []string{"sig1=" + signatureInput}
		signature := ed25519.Sign(privateKey, signatureBase(r))
		r.Header["Signature"] = []string{"sig1=:" + base64.StdEncoding.EncodeToString(signature) + ":"}
	}
	const path, body = "/checkout-sessions/chk%2F1", "{ \"line_items\" : [\n] }"
	signed := []requestOption{
		withMethod(http.MethodPut), withHost("shop.example"), withUser("platform"), withKey("order-17"), sign,
	}
	common := slices.Clip(append(userHeaderFlags, "-store", "memory:", "-methods", "POST,PUT"))

	p := startProxy(t, upstream.URL, append(common, "-preserve-host", "-forward-key")...)
	first := p.post(path, body, signed...)
	require.Equal(t, 201, first.status, first)
	replay := p.post(path, body, signed...)
	require.True(t, replay.replayed)
	require.Equal(t, 1, upstream.requestCount())
	for _, name := range []string{"Content-Digest", "Signature-Input", "Signature"} {
		require.NotEmpty(t, first.header[name])
		require.Equal(t, first.header[name], replay.header[name])
	}
	require.Equal(t, first.body, replay.body)

	for _, flags := range [][]string{{"-preserve-host"}, {"-forward-key"}} {
		p := startProxy(t, upstream.URL, append(common, flags...)...)
		require.Equal(t, 401, p.post(path, body, signed...).status, "with %v alone, the service must see another request", flags)
	}
}
