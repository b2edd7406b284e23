package gqlgenidempotency_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/handler"
	"github.com/stretchr/testify/require"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/gqlgenidempotency"
	"github.com/idempotency-go/idempotency/adapters/gqlgenidempotency/testdata/shop"
	"github.com/idempotency-go/idempotency/adapters/internal/adaptertest"
)

// requireRefused requires that the only error is a refusal with the given code and retry advice.
func requireRefused(t *testing.T, got answer, code, retry string) {
	t.Helper()
	require.Equal(t, code, got.errorCode(), got.Text)
	extensions := got.Errors[0]["extensions"].(map[string]any)
	require.Equal(t, retry, extensions["retry"])
	switch code {
	case "IN_PROGRESS", "STORE_UNAVAILABLE":
		require.Equal(t, 1.0, extensions["retryAfter"])
	default:
		require.Nil(t, extensions["retryAfter"])
	}
}

func TestNewReportsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := gqlgenidempotency.New(nil, nil, gqlgenidempotency.Options{MaxResponse: -1})
	for _, fault := range []string{"Runner is nil", "UserFunc is nil", "MaxResponse is -1"} {
		require.ErrorContains(t, err, fault)
	}
}

// Validate refuses a schema whose directive idempotent differs from the directive of this package.
func TestValidate(t *testing.T) {
	t.Parallel()
	runner, err := idempotency.NewRunner(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.RunnerOptions{})
	require.NoError(t, err)
	guard, err := gqlgenidempotency.New(runner, gqlgenidempotency.SingleUser, gqlgenidempotency.Options{})
	require.NoError(t, err)
	query := &ast.Definition{Kind: ast.Object, Name: "Query"}
	mutation := &ast.Definition{Kind: ast.Object, Name: "Mutation"}
	key := func(t *ast.Type) ast.ArgumentDefinitionList {
		return ast.ArgumentDefinitionList{{Name: "key", Type: t}}
	}
	on := func(l ast.DirectiveLocation, args ast.ArgumentDefinitionList) *ast.DirectiveDefinition {
		return &ast.DirectiveDefinition{Name: "idempotent", Arguments: args, Locations: []ast.DirectiveLocation{l}}
	}
	text := ast.NonNullNamedType("String", nil)
	for name, tt := range map[string]struct {
		mutationType *ast.Definition
		directive    *ast.DirectiveDefinition
		wantErr      string // empty: the schema is valid
	}{
		"own directive":        {mutation, on(ast.LocationField, key(text)), ""},
		"no directive":         {mutation, nil, ""},
		"no mutations":         {nil, nil, "no mutations"},
		"on field definitions": {mutation, on(ast.LocationFieldDefinition, key(text)), "on FIELD"},
		"without key":          {mutation, on(ast.LocationField, nil), "on FIELD"},
		"optional key":         {mutation, on(ast.LocationField, key(ast.NamedType("String", nil))), "on FIELD"},
	} {
		schema := &ast.Schema{Query: query, Mutation: tt.mutationType, Directives: map[string]*ast.DirectiveDefinition{}}
		if tt.directive != nil {
			schema.Directives["idempotent"] = tt.directive
		}
		err := guard.Validate(&graphql.ExecutableSchemaMock{SchemaFunc: func() *ast.Schema { return schema }})
		if tt.wantErr == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, tt.wantErr, name)
		}
	}
}

// The key of a field comes from the directive or from the header. If a document has a wrong key or lacks a required key,
// the whole document is refused, and no field is executed.
func TestKeys(t *testing.T) {
	t.Parallel()
	const pay, refund = `pay(input: {cents: 1})`, `refund(order: 1)`
	required := func(field string) bool { return field == "pay" }
	header := []string{"Idempotency-Key", "1"}
	for name, tt := range map[string]struct {
		document     string
		header       []string
		wantCode     string   // of the refusal. Empty: the document is executed
		wantReplayed []string // the replayed fields of the retry
	}{
		"directive":              {`mutation { ` + pay + ` @idempotent(key: "1") { id } }`, nil, "", []string{"pay"}},
		"header":                 {`mutation { ` + pay + ` { id } }`, header, "", []string{"pay"}},
		"quoted header":          {`mutation { ` + pay + ` { id } }`, []string{"Idempotency-Key", `"1"`}, "", []string{"pay"}},
		"header, and __typename": {`mutation { __typename ` + pay + ` { id } }`, header, "", []string{"pay"}},
		"header, skipped field":  {`mutation { ` + pay + ` { id } ` + refund + ` @skip(if: true) { id } }`, header, "", []string{"pay"}},
		"both":                   {`mutation { ` + pay + ` @idempotent(key: "2") { id } }`, header, "", []string{"pay"}},
		"a key for each field": {`mutation { a: ` + pay + ` @idempotent(key: "1") { id } b: ` + refund +
			` @idempotent(key: "1") { id } }`,
			header, "", []string{"a", "b"}},
		"one field with a key": {`mutation { ` + pay + ` @idempotent(key: "1") { id } ` + refund + ` { id } }`, nil, "",
			[]string{"pay"}},
		"no required field":  {`mutation { ` + refund + ` { id } }`, nil, "", nil},
		"any character":      {`mutation { ` + pay + ` @idempotent(key: "a\\,;\"b") { id } }`, nil, "", []string{"pay"}},
		"header for several": {`mutation { a: ` + refund + ` { id } b: ` + refund + ` { id } }`, header, "KEY_INVALID", nil},
		"header for the rest": {`mutation { ` + pay + ` @idempotent(key: "1") { id } ` + refund + ` { id } }`, header,
			"KEY_INVALID", nil},
		"two headers":         {`mutation { ` + pay + ` { id } }`, append(header, header...), "KEY_INVALID", nil},
		"header with a space": {`mutation { ` + pay + ` { id } }`, []string{"Idempotency-Key", "a b"}, "KEY_INVALID", nil},
		"missing":             {`mutation { ` + pay + ` { id } }`, nil, "KEY_MISSING", nil},
		"missing for one": {`mutation { ` + refund + ` @idempotent(key: "1") { id } ` + pay + ` { id } }`, nil,
			"KEY_MISSING", nil},
		"empty":                          {`mutation { ` + pay + ` @idempotent(key: "") { id } }`, nil, "KEY_INVALID", nil},
		"space":                          {`mutation { ` + pay + ` @idempotent(key: "a b") { id } }`, nil, "KEY_INVALID", nil},
		"directive below the root field": {`mutation { ` + refund + ` { id @idempotent(key: "1") } }`, nil, "KEY_INVALID", nil},
		"directive below, in fragments": {`mutation { ` + refund +
			` { ...A ...A } } fragment A on Order { ... { id @idempotent(key: "1") } }`, nil, "KEY_INVALID", nil},
		"excluded": {`mutation { ` + pay + ` @idempotent(key: "1") @include(if: false) { id } ` + refund +
			` @idempotent(key: "2") { id } }`,
			nil, "", []string{"refund"}},
		"excluded by a variable": {`mutation($no: Boolean! = false) { ` + pay + ` @include(if: $no) @idempotent(key: "1") { id } ` +
			refund + ` @idempotent(key: "2") { id } }`, nil, "", []string{"refund"}},
		"skipped": {`mutation { ` + pay + ` @idempotent(key: "1") @skip(if: true) @include(if: true) { id } ` + refund +
			` @skip(if: false) @idempotent(key: "2") { id } }`, nil, "", []string{"refund"}},
		"excluded with a fragment": {`mutation { ... @include(if: false) { ` + pay + ` @idempotent(key: "1") { id } } ` +
			`...M @skip(if: true) ` + refund + ` @idempotent(key: "2") { id } } fragment M on Mutation { a: ` + pay +
			` @idempotent(key: "3") { id } }`, nil, "", []string{"refund"}},
		"included once, excluded once": {`mutation { ...M @include(if: false) ...M } fragment M on Mutation { ` + pay +
			` @idempotent(key: "1") { id } }`,
			nil, "", []string{"pay"}},
		"excluded before the merge": {`mutation { ` + pay + ` @idempotent(key: "1") @skip(if: true) { id } ` + pay +
			` @idempotent(key: "2") { id } }`, nil, "", []string{"pay"}},
		"directive below, excluded": {`mutation { ` + refund +
			` @idempotent(key: "1") { id cents @idempotent(key: "2") @skip(if: true) } }`, nil, "", []string{"refund"}},
		"directive below, not excluded": {`mutation { ` + refund + ` { id @idempotent(key: "1") @skip(if: false) } }`,
			nil, "KEY_INVALID", nil},
		"directive below, excluded once": {`mutation { ` + refund +
			` { ...A @skip(if: true) ...A } } fragment A on Order { id @idempotent(key: "1") }`,
			nil, "KEY_INVALID", nil},
		"merged": {`mutation { ` + refund + ` { id } ...M } fragment M on Mutation { ` + refund + ` @idempotent(key: "1") { cents } }`,
			nil, "KEY_INVALID", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{guardOptions: gqlgenidempotency.Options{Required: required}})
			got := s.execute(tt.document, tt.header...)
			if tt.wantCode != "" {
				requireRefused(t, got, tt.wantCode, "new-key")
				require.Equal(t, "null", string(got.Data))
				require.Equal(t, 422, got.Status)
				require.Zero(t, s.runs.Load())
				return
			}
			require.Empty(t, got.Errors)
			again := s.execute(tt.document, tt.header...)
			require.Equal(t, string(got.Data), string(again.Data))
			require.Equal(t, tt.wantReplayed, again.replayedFields())
		})
	}
}

// In GraphQL over HTTP, a document that is not executed gets the status 400, and a document with a refused field 200.
func TestStatus(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{store: &adaptertest.FaultyStore{BeginErr: errors.New("refused")}})
	accept := []string{"Accept", "application/graphql-response+json"}
	require.Equal(t, 400, s.execute(`mutation { pay(input: {cents: 1}) @idempotent(key: "") { id } }`, accept...).Status)
	require.Equal(t, 200, s.execute(`mutation { pay(input: {cents: 1}) @idempotent(key: "1") { id } }`, accept...).Status)
}

// A key belongs to one user and one field.
func TestScope(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{})
	for _, user := range []string{"alice", "bob"} {
		for _, field := range []string{`pay(input: {cents: 1})`, `refund(order: 1)`} {
			got := s.execute(`mutation { `+field+` @idempotent(key: "1") { id } }`, "User", user)
			require.Empty(t, got.Errors)
			require.Empty(t, got.replayedFields())
		}
	}
	require.Equal(t, int64(4), s.runs.Load())
}

// The guard ignores keys of queries.
func TestQueriesAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{guardOptions: gqlgenidempotency.Options{Required: func(string) bool { return true }}})
	for range 2 {
		got := s.execute(`{ a: order(id: 1) { id } b: order(id: 1) @idempotent(key: "1") { state } }`, "Idempotency-Key", "not a key")
		require.Empty(t, got.Errors)
		require.Empty(t, got.replayedFields())
	}
	require.Equal(t, int64(4), s.runs.Load())
}

// The fields of a document are executed one after the other, each with its own key.
func TestSeveralFields(t *testing.T) {
	t.Parallel()
	var failing bool
	s := startService(t, setup{resolvers: resolvers{payOrder: func(_ context.Context, cents int) (*shop.Order, error) {
		if failing = !failing; failing && cents == 2 {
			return nil, errors.New("not now")
		}
		return &shop.Order{ID: fmt.Sprint(cents)}, nil
	}}})
	failing = true
	const query = `mutation { a: pay(input: {cents: 1}) @idempotent(key: "1") { id }
		b: pay(input: {cents: 2}) @idempotent(key: "2") { id }
		c: pay(input: {cents: 1}) @idempotent(key: "1") { id } d: pay(input: {cents: 3}) @idempotent(key: "1") { id } }`
	first := s.execute(query)
	require.Equal(t, "null", string(first.Data), "b and d must not be null")
	require.Equal(t, []string{"c"}, first.replayedFields())
	require.Len(t, first.Errors, 2)
	require.Equal(t, []any{"b"}, first.Errors[0]["path"])
	require.Equal(t, []any{"d"}, first.Errors[1]["path"])
	require.NotEmpty(t, first.Errors[1]["locations"])

	again := s.execute(query)
	require.Equal(t, []string{"a", "c"}, again.replayedFields())
	requireRefused(t, again, "KEY_REUSED", "new-key")
	require.Equal(t, int64(3), s.runs.Load())
}

func TestUserUnknown(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		userErr  error
		wantCode any
	}{
		"empty": {nil, "USER_UNKNOWN"},
		"error": {errors.New("who?"), "USER_UNKNOWN"},
		"error of GraphQL": {&gqlerror.Error{Message: "who?", Extensions: map[string]any{"code": "UNAUTHENTICATED"}},
			"UNAUTHENTICATED"},
		"error of the module": {&idempotency.Error{Status: 403, Code: "account-closed"}, "ACCOUNT_CLOSED"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{identifyUser: func(context.Context) (string, error) { return "", tt.userErr }})
			got := s.execute(`mutation { refund(order: 1) @idempotent(key: "1") { id } }`)
			require.Equal(t, tt.wantCode, got.errorCode())
			require.Equal(t, []any{"refund"}, got.Errors[0]["path"])
			require.Zero(t, s.runs.Load())
		})
	}
}

// The error presenter of a service receives the refusal with its reason.
func TestPresenterSeesTheReason(t *testing.T) {
	t.Parallel()
	seen := make(chan error, 1)
	presentAndSend := func(graph *handler.Server) {
		graph.SetErrorPresenter(func(ctx context.Context, err error) *gqlerror.Error {
			seen <- err
			return graphql.DefaultErrorPresenter(ctx, err)
		})
	}
	s := startService(t, setup{store: &adaptertest.FaultyStore{BeginErr: errors.New("refused")}, adjustServer: presentAndSend})
	s.execute(`mutation { refund(order: 1) @idempotent(key: "1") { id } }`)
	require.ErrorIs(t, awaitValue(t, seen), idempotency.ErrUnavailable)
}

func TestFaultsOfTheStore(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		faultyStore adaptertest.FaultyStore
		wantCode    string
		wantRuns    int64
	}{
		"down":       {adaptertest.FaultyStore{BeginErr: errors.New("refused")}, "STORE_UNAVAILABLE", 0},
		"claim lost": {adaptertest.FaultyStore{CompleteErr: idempotency.ErrClaimLost}, "IN_PROGRESS", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.faultyStore.Store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
			s := startService(t, setup{store: &tt.faultyStore})
			got := s.execute(`mutation { refund(order: 1) @idempotent(key: "1") { id } }`)
			requireRefused(t, got, tt.wantCode, "same-key")
			require.JSONEq(t, `{"refund": null}`, string(got.Data))
			require.Equal(t, tt.wantRuns, s.runs.Load())
		})
	}
}

func TestFailOpen(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{
		store: &adaptertest.FaultyStore{BeginErr: errors.New("refused")}, runnerOptions: idempotency.RunnerOptions{FailOpen: true},
	})
	for range 2 {
		require.Empty(t, s.execute(`mutation { refund(order: 1) @idempotent(key: "1") { id } }`).Errors)
	}
	require.Equal(t, int64(2), s.runs.Load())
}
