package gqlgenidempotency_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The fingerprint of a request depends on the arguments after coercion, and not on their spelling.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	literal := func(arguments string) request {
		return request{document: `mutation { pay` + arguments + ` @idempotent(key: "1") { id } }`}
	}
	variable := func(input string) request {
		return request{
			document:  `mutation($i: PayInput!) { pay(input: $i) @idempotent(key: "1") { id } }`,
			variables: `{"i": ` + input + `}`,
		}
	}
	refund := func(arguments, variables string) request {
		return request{document: `mutation($n: Int, $d: Int = 100, $o: ID! = 1) { refund(` + arguments + `) @idempotent(key: "1") { id }
			use: refund(order: $o, cents: $d, reason: "use") @skip(if: true) { id } n: refund(order: 1, cents: $n) @skip(if: true) { id } }`,
			variables: variables}
	}
	for name, tt := range map[string]struct {
		first, retry    request
		sameFingerprint bool
	}{
		"variables":       {literal(`(input: {cents: 1})`), variable(`{"cents": 1}`), true},
		"order of fields": {literal(`(input: {cents: 1, currency: USD})`), variable(`{"currency": "USD", "cents": 1}`), true},
		"default":         {literal(`(input: {cents: 1})`), variable(`{"cents": 1, "currency": "EUR"}`), true},
		"default, nested": {literal(`(input: {cents: 1, ship: {to: "7"}})`),
			variable(`{"cents": 1, "ship": {"to": 7, "express": false}}`), true},
		"default of argument":  {refund(`order: 1`, ``), refund(`order: "1", cents: 100`, ``), true},
		"default of variable":  {refund(`order: 1`, ``), refund(`order: $o, cents: $d`, ``), true},
		"variable not given":   {refund(`order: 1`, ``), refund(`order: 1, cents: $n`, ``), true},
		"list of one":          {literal(`(input: {cents: 1, tags: ["a"]})`), variable(`{"cents": 1, "tags": "a"}`), true},
		"list of one, literal": {literal(`(input: {cents: 1, tags: ["a"]})`), literal(`(input: {cents: 1, tags: "a"})`), true},
		"float":                {literal(`(input: {cents: 1, weight: 1})`), variable(`{"cents": 1, "weight": 1.0}`), true},
		"scalar of the schema": {literal(`(input: {cents: 1, details: {b: [1], a: "x"}})`),
			variable(`{"cents": 1, "details": {"a": "x", "b": [1]}}`), true},
		"variable within": {literal(`(input: {cents: 1, tags: ["a"]})`), request{
			document:  `mutation($t: String!) { pay(input: {cents: 1, tags: [$t]}) @idempotent(key: "1") { id } }`,
			variables: `{"t": "a"}`,
		}, true},

		"value":             {variable(`{"cents": 1}`), variable(`{"cents": 2}`), false},
		"not the default":   {variable(`{"cents": 1}`), variable(`{"cents": 1, "currency": "USD"}`), false},
		"null":              {variable(`{"cents": 1}`), variable(`{"cents": 1, "tags": null}`), false},
		"null, not default": {refund(`order: 1`, ``), refund(`order: 1, reason: null`, ``), false},
		"order of a list":   {variable(`{"cents": 1, "tags": ["a", "b"]}`), variable(`{"cents": 1, "tags": ["b", "a"]}`), false},
		"list in a list":    {variable(`{"cents": 1, "details": ["a"]}`), variable(`{"cents": 1, "details": "a"}`), false},
		"digits": {variable(`{"cents": 1, "details": 12345678901234567.01}`),
			variable(`{"cents": 1, "details": 12345678901234567.02}`), false},
		"number, text": {variable(`{"cents": 1, "details": 1}`), variable(`{"cents": 1, "details": "1"}`), false},
		"nested": {literal(`(input: {cents: 1, ship: {to: 7}})`),
			literal(`(input: {cents: 1, ship: {to: 7, express: true}})`), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{})
			first := s.sendAnswered(tt.first)
			require.Empty(t, first.Errors)
			again := s.sendAnswered(tt.retry)
			require.Equal(t, int64(1), s.runs.Load())
			if tt.sameFingerprint {
				require.Equal(t, string(first.Data), string(again.Data), again.Text)
				return
			}
			requireRefused(t, again, "KEY_REUSED", "new-key")
		})
	}
}

// Invalid arguments get an answer, and the resolver does not run.
func TestArgumentsThatAreNotValid(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	const details = `mutation($d: Any) { pay(input: {cents: 1, details: $d}) @idempotent(key: "1") { id } }`
	for name, tt := range map[string]struct {
		request  request
		wantCode any
	}{
		"number beyond floats": {request{document: details, variables: `{"d": 1e999}`}, "BODY_INVALID"},
		"nested too deep":      {request{document: details, variables: `{"d": ` + deep + `}`}, "BODY_INVALID"},
		"not for the resolver": {request{document: `mutation { attach(order: 1, file: "text") @idempotent(key: "1") }`}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{})
			for range 2 {
				got := s.sendAnswered(tt.request)
				require.Equal(t, tt.wantCode, got.errorCode(), got.Text)
			}
			require.Zero(t, s.runs.Load())
		})
	}
}
