package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// tokenClaims are the verified claims of an access token. The authentication puts them into the context.
type tokenClaims struct{ Issuer, Subject, Tenant string }

type tokenKey struct{}

// tokenUser names the caller by tenant, issuer and subject. They stay the same when the token is renewed.
func tokenUser(r *http.Request) (string, error) {
	claims, ok := r.Context().Value(tokenKey{}).(tokenClaims)
	if !ok {
		return "", nil // refused with 401 user-unknown
	}
	if claims.Tenant == "" {
		return "", &idempotency.Error{Status: http.StatusForbidden, Detail: "The token names no tenant."}
	}
	return fmt.Sprintf("%q %q %q", claims.Tenant, claims.Issuer, claims.Subject), nil
}

// Two issuers may give out the same subject, and one person may act for two tenants: these are different users.
func ExampleUserFunc_token() {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), tokenUser, idempotency.Options{})
	if err != nil {
		panic(err)
	}
	payments := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		fmt.Fprintln(w, "charged for", op.Key.User)
	}))
	for _, claims := range []any{
		tokenClaims{"https://id.example", "17", "north"},
		tokenClaims{"https://id.example", "17", "south"},
		tokenClaims{"https://other.example", "17", "north"},
		tokenClaims{Issuer: "https://id.example", Subject: "17"},
		nil,
	} {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		payments.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tokenKey{}, claims)))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 charged for "north" "https://id.example" "17"
	//
	// 200 charged for "south" "https://id.example" "17"
	//
	// 200 charged for "north" "https://other.example" "17"
	//
	// 403 {"type":"about:blank","title":"Forbidden","status":403,"detail":"The token names no tenant."}
	// 401 {"type":"https://github.com/idempotency-go/idempotency#user-unknown","title":"Caller is unknown","status":401,"detail":"This attempt was not executed. Authenticate, then retry with the same key.","retry":"same-key"}
}
