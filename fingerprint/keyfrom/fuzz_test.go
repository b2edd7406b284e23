package keyfrom_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint/keyfrom"
)

// keyOf returns the key by which a request is guarded, or "" if the request passes or is refused.
func keyOf(t *testing.T, guard *keyfrom.Middleware, r *http.Request) (key string, status int) {
	w := httptest.NewRecorder()
	guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		key = op.Key.ID
		idempotency.Decide(r.Context(), idempotency.Free)
	})).ServeHTTP(w, r)
	require.Contains(t, []int{http.StatusOK, http.StatusBadRequest, http.StatusRequestEntityTooLarge}, w.Code)
	return key, w.Code
}

func newGuard(t testing.TB, source keyfrom.Source) *keyfrom.Middleware {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	guard, err := keyfrom.New(store, idempotency.SingleUser, idempotency.Options{}, source)
	require.NoError(t, err)
	return guard
}

func post(target, media string, body []byte) *http.Request {
	r := httptest.NewRequest("POST", target, bytes.NewReader(body))
	r.Header.Set("Content-Type", media)
	return r
}

// FuzzJSON reads a document in three ways. If the request runs, all readers find the same key.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		`{"key":"k"}`, `{"key":"k","key":"m"}`, `{"Key":"k"}`, `{"\u006bey":"k"}`, `{"key":null}`, `{"key":1}`, `{"key":""}`, ``,
		`{"in":{"key":"k"},"key":"\ud83d\ude00"}`, `{"key":"a b"}`, "{\"\u212aey\":\"k\"}", `[{"key":"k"}]`, `{"key":"\ud800"}`,
	} {
		f.Add(seed)
	}
	guard := newGuard(f, keyfrom.JSON("/key"))
	f.Fuzz(func(t *testing.T, body string) {
		key, status := keyOf(t, guard, post("/", js, []byte(body)))
		if status != http.StatusOK {
			return
		}
		var byField struct{ Key *string } // also from "KEY", and the last of several
		var byName map[string]any
		if body != "" {
			require.True(t, json.Valid([]byte(body)))
			_ = json.Unmarshal([]byte(body), &byField)
			_ = json.Unmarshal([]byte(body), &byName)
		}
		if key == "" {
			require.Nil(t, byField.Key, "%q", body)
			require.Nil(t, byName["key"], "%q", body)
			return
		}
		require.Equal(t, key, *byField.Key, "%q", body)
		require.Equal(t, key, byName["key"], "%q", body)
	})
}

// FuzzFormField reads a form, and a query, as net/http does.
func FuzzFormField(f *testing.F) {
	for _, seed := range []string{"key=k", "key=k&key=k", "a=1;key=k", "Key=k", "%6bey=%6b", "key", "key=%zz", "a=%&key=k", ""} {
		f.Add(seed)
	}
	inForm, inQuery := newGuard(f, keyfrom.Form("key")), newGuard(f, keyfrom.Query("key"))
	f.Fuzz(func(t *testing.T, text string) {
		values, _ := url.ParseQuery(text)
		if key, status := keyOf(t, inForm, post("/", encoded, []byte(text))); status == http.StatusOK {
			require.Equal(t, values.Get("key"), key, "%q", text)
		}
		r := post("/", "", nil)
		r.URL.RawQuery = text
		if key, status := keyOf(t, inQuery, r); status == http.StatusOK {
			require.Equal(t, values.Get("key"), key, "%q", text)
		}
	})
}

// FuzzFormPart reads a form with files as net/http does.
func FuzzFormPart(f *testing.F) {
	part := func(header, value string) string { return "--x\r\n" + header + "\r\n\r\n" + value + "\r\n" }
	for _, seed := range []string{
		part("Content-Disposition: form-data; name=key", "k") + "--x--\r\n",
		part("Content-Disposition: form-data; name=key; filename=f", "k") + "--x--",
		part("Content-Disposition: form-data; name=\"key\"", "k") + part("content-disposition: form-data; name=KEY", "m") + "--x--",
		part("Content-Disposition: form-data; name=key\r\nContent-Transfer-Encoding: quoted-printable", "=6b") + "--x--",
		part("Content-Disposition: attachment; name=key", "k") + "--x--", "--x--",
		part("Content-Disposition: form-data; name*=utf-8''key", "k") + "--x--\r\n--x",
	} {
		f.Add(seed)
	}
	guard := newGuard(f, keyfrom.Form("key"))
	f.Fuzz(func(t *testing.T, body string) {
		key, status := keyOf(t, guard, post("/", boundary, []byte(body)))
		if status != http.StatusOK {
			return
		}
		read := post("/", boundary, []byte(body))
		if read.ParseMultipartForm(1<<20) != nil {
			return
		}
		for name, values := range read.MultipartForm.Value {
			if strings.EqualFold(name, "key") {
				require.Equal(t, []string{key}, values, "%q", body)
			}
		}
		if key != "" {
			require.Equal(t, key, read.FormValue("key"), "%q", body)
		}
	})
}
