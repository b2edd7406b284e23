package testservice

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// Problem is the body of a refusal.
type Problem struct {
	Type, Title, Detail    string
	Instance, StatusURL    string
	Status, OriginalStatus int
	Retry                  idempotency.Retry
}

// retries maps the code of each problem to the advice for the client.
var retries = map[string]idempotency.Retry{
	"key-missing":    idempotency.RetryNewKey,
	"key-invalid":    idempotency.RetryNewKey,
	"user-unknown":   idempotency.RetrySameKey,
	"body-too-large": idempotency.RetryNever,
	"body-invalid":   idempotency.RetrySameKey,

	"digest-invalid-values":     idempotency.RetryNewKey,
	"digest-mismatching-values": idempotency.RetrySameKey,

	"body-consumed":     idempotency.RetryNever,
	"overloaded":        idempotency.RetrySameKey,
	"quota-exceeded":    idempotency.RetrySameKey,
	"in-progress":       idempotency.RetrySameKey,
	"key-reused":        idempotency.RetryNewKey,
	"not-replayable":    idempotency.RetryNever,
	"replay-refused":    idempotency.RetryNever,
	"outcome-unknown":   idempotency.RetryNever,
	"store-unavailable": idempotency.RetrySameKey,
}

// RequireProblem checks all parts of the refusal a with status and code.
func RequireProblem(t *testing.T, a Answer, status int, code string) Problem {
	t.Helper()
	require.Equal(t, status, a.Status, "body: %s", a.Body)
	require.Equal(t, "application/problem+json", a.Header.Get("Content-Type"))
	require.Equal(t, "no-store", a.Header.Get("Cache-Control"))
	require.Equal(t, "nosniff", a.Header.Get("X-Content-Type-Options"))
	require.Equal(t, status == http.StatusUnauthorized, a.Header.Get("WWW-Authenticate") != "")
	require.False(t, a.Replayed())
	var p Problem
	decoder := json.NewDecoder(bytes.NewReader([]byte(a.Body)))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&p))
	base := "https://idempotency-go.github.io/idempotency/problems#"
	if strings.HasPrefix(code, "digest-") { // registered by IANA
		base = "https://iana.org/assignments/http-problem-types#"
	}
	require.Equal(t, base+code, p.Type)
	require.Equal(t, status, p.Status)
	require.NotEmpty(t, p.Title)
	require.NotEmpty(t, p.Detail)
	require.Contains(t, retries, code)
	require.Equal(t, retries[code], p.Retry)
	switch code {
	case "key-missing", "key-invalid", "user-unknown":
		require.Empty(t, p.Instance, "the request was refused before its key was known")
	case "body-too-large", "body-invalid", "digest-mismatching-values", "body-consumed", "overloaded": // refusals of package upload have no key
	default:
		id, err := uuid.Parse(p.Instance)
		require.NoError(t, err)
		require.Equal(t, id.URN(), p.Instance)
	}
	switch code {
	case "in-progress", "store-unavailable", "overloaded":
		require.Equal(t, "1", a.Header.Get("Retry-After"))
	case "quota-exceeded":
		require.Equal(t, "60", a.Header.Get("Retry-After"))
	default:
		require.NotContains(t, a.Header, "Retry-After")
	}
	return p
}

// RequireReplay checks that a is a replay of first.
func RequireReplay(t *testing.T, first, a Answer) {
	t.Helper()
	require.True(t, a.Replayed(), "not marked as a replay: %d %s", a.Status, a.Body)
	header := a.Header.Clone()
	header.Del("Idempotent-Replayed")
	require.Equal(t, first, Answer{a.Status, header, a.Body, a.Err})
}

// FormatVerbs returns all formats for which package fmt calls the methods of the value.
func FormatVerbs() []string {
	list := []string{"%+v", "%#v", "%+q", "% x", "%20s"}
	for verb := 'A'; verb <= 'z'; verb++ {
		if unicode.IsLetter(verb) && !strings.ContainsRune("Tpw", verb) {
			list = append(list, "%"+string(verb))
		}
	}
	return list
}
