package gqlgenidempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime/multipart"
	"strings"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/handler"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/gqlgenidempotency"
	"github.com/idempotency-go/idempotency/adapters/gqlgenidempotency/testdata/shop"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

func fails[T any](failure error) func(context.Context) (T, error) {
	return func(context.Context) (none T, err error) { return none, failure }
}

// payment is a resolver that returns an order and an error, and may decide before.
func payment(order *shop.Order, failure error, verdicts ...idempotency.Verdict) resolvers {
	return resolvers{pay: func(ctx context.Context, _ int) (*shop.Order, error) {
		for _, v := range verdicts {
			idempotency.Decide(ctx, v)
		}
		return order, failure
	}}
}

// detailed returns an error with all that an error of GraphQL may have. Each test has its own: gqlgen writes where it was
// into the error of a resolver.
func detailed() *gqlerror.Error {
	return &gqlerror.Error{Message: "no <money>", Extensions: map[string]any{
		"code": "DECLINED", "limit": json.Number("12345678901234567890"), "list": []int{1},
	}}
}

// To the client, the first answer is that of the unguarded field, and so is a replay but for its mark.
func TestAnswersAreEqual(t *testing.T) {
	t.Parallel()
	const payAll = `mutation { pay(input: {cents: 1}) @idempotent(key: "1") { __typename no: id cents state note(upper: true) } }`
	order := &shop.Order{ID: "7", Cents: 1}
	for name, tt := range map[string]struct {
		setup setup
		query string
		final bool
	}{
		"object":                 {setup{}, payAll, true},
		"fragments":              {setup{}, `mutation { ...F } fragment F on Mutation { a: pay(input: {cents: 1}) @idempotent(key: "1") { ...O } } fragment O on Order { id ... { state } }`, true},
		"null":                   {setup{}, `mutation { refund(order: "none") @idempotent(key: "1") { id } }`, true},
		"null where none may be": {setup{resolvers: payment(nil, nil)}, payOnce, true},
		"a child fails":          {setup{resolvers: resolvers{note: fails[*string](errors.New("no note"))}}, payAll, true},
		"a child that must not":  {setup{resolvers: resolvers{state: fails[string](detailed())}}, payAll, true},
		"a child panics":         {setup{resolvers: resolvers{state: func(context.Context) (string, error) { panic("oops") }}}, payAll, true},
		"error":                  {setup{resolvers: payment(order, errors.New("not now"))}, payOnce, false},
		"error with all":         {setup{resolvers: payment(nil, detailed())}, payOnce, false},
		"several errors":         {setup{resolvers: payment(nil, gqlerror.List{detailed(), {Message: "nor this"}})}, payOnce, false},
		"error that is kept":     {setup{resolvers: payment(nil, detailed(), idempotency.Keep)}, payOnce, true},
		"panic": {setup{resolvers: resolvers{pay: func(context.Context, int) (*shop.Order, error) {
			panic("oops")
		}}}, payOnce, false},
		"released": {setup{resolvers: payment(order, nil, idempotency.Keep, idempotency.Free)}, payOnce, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.setup.bare = true
			unguarded := serve(t, tt.setup).run(tt.query)
			tt.setup.bare = false
			s := serve(t, tt.setup)
			first := s.run(tt.query)
			require.Equal(t, unguarded.Text, first.Text)
			again := s.run(tt.query)
			require.Equal(t, tt.final, len(again.replayed()) == 1)
			require.Equal(t, map[bool]int64{true: 1, false: 2}[tt.final], s.runs.Load())
			if tt.final {
				require.Equal(t, first.Status, again.Status)
				require.Equal(t, first.Errors, again.Errors)
				mark := fmt.Sprintf(`,"extensions":{"idempotency":{"replayed":[%q]}}}`, again.replayed()[0])
				require.Equal(t, strings.TrimSuffix(first.Text, "}")+mark, again.Text)
			}
		})
	}
}

// A replay shows the errors that the client saw first, also if the service hides those that it does not know.
func TestErrorsArePresentedOnce(t *testing.T) {
	t.Parallel()
	known := errors.New("declined")
	s := serve(t, setup{resolvers: payment(nil, known, idempotency.Keep), adjust: func(graph *handler.Server) {
		graph.SetErrorPresenter(func(ctx context.Context, err error) *gqlerror.Error {
			if errors.Is(err, known) {
				return graphql.DefaultErrorPresenter(ctx, err)
			}
			return gqlerror.Errorf("hidden")
		})
	}})
	first, again := s.run(payOnce), s.run(payOnce)
	require.Equal(t, "declined", first.Errors[0]["message"])
	require.Equal(t, first.Errors, again.Errors)
	require.Equal(t, []string{"pay"}, again.replayed())
}

// What the retry selects must be what was selected first, however it is written.
func TestSelection(t *testing.T) {
	t.Parallel()
	document := func(selection string) string {
		return `mutation M($no: Boolean! = false) { pay(input: {cents: 1}) @idempotent(key: "1") { ` + selection + ` } }`
	}
	for name, tt := range map[string]struct {
		first, retry string
		same         bool
	}{
		"white space":          {`id cents`, "id,\n cents # all\n", true},
		"fragment":             {`id cents`, `id ... on Order { cents }`, true},
		"skipped":              {`id`, `id cents @include(if: $no)`, true},
		"twice":                {`id cents`, `id cents id`, true},
		"default of an option": {`id note`, `id note(upper: false)`, true},
		"less":                 {`id cents`, `id`, false},
		"more":                 {`id`, `id cents`, false},
		"other name":           {`id`, `no: id`, false},
		"other field":          {`x: id`, `x: cents`, false},
		"other argument":       {`note`, `note(upper: true)`, false},
		"other order":          {`id cents`, `cents id`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, setup{})
			use := `... @include(if: $no) { id }` // of the variable, in both
			first := s.run(document(tt.first + " " + use))
			require.Empty(t, first.Errors)
			again := s.run(document(tt.retry + " " + use))
			require.Equal(t, int64(1), s.runs.Load())
			if tt.same {
				require.Equal(t, string(first.Data), string(again.Data))
				return
			}
			requireRefused(t, again, "NOT_REPLAYABLE", "never")
		})
	}
}

// A retry may give the field another name, and write the document in another way. Its errors are then those that the first
// answer would have had with this document.
func TestErrorsOfAnotherDocument(t *testing.T) {
	t.Parallel()
	const first = `mutation { first: pay(input: {cents: 1}) @idempotent(key: "1") { id no: note } }`
	upstream := func() *gqlerror.Error { // an error that the resolver has from another server
		return &gqlerror.Error{Message: "elsewhere", Path: ast.Path{ast.PathName("charge"), ast.PathIndex(0)},
			Locations: []gqlerror.Location{{Line: 7, Column: 8}}}
	}
	noNote := fails[*string](errors.New("no note"))
	declined := func() resolvers { return payment(nil, detailed(), idempotency.Keep) }
	for name, tt := range map[string]struct {
		resolvers func() resolvers
		retry     string
	}{
		"of the field": {declined, "mutation {\n  second: pay(input: {cents: 1}) @idempotent(key: \"1\") { id no: note } }"},
		"of a field below": {func() resolvers { return resolvers{note: noNote} },
			"mutation M {\n  second: pay(input: {cents: 1}) @idempotent(key: \"1\") { id\n ...N } }\n fragment N on Order {\n no: note }"},
		"without a name": {declined, `mutation { pay(input: {cents: 1}) @idempotent(key: "1") { id no: note } }`},
		"of another server": {func() resolvers { return payment(nil, upstream(), idempotency.Keep) },
			"mutation {\n  second: pay(input: {cents: 1}) @idempotent(key: \"1\") { id no: note } }"},
		"of the same document": {func() resolvers { return payment(nil, upstream(), idempotency.Keep) }, first},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := serve(t, setup{resolvers: tt.resolvers()}).run(tt.retry)
			require.Len(t, want.Errors, 1)
			require.Empty(t, want.replayed())
			s := serve(t, setup{resolvers: tt.resolvers()})
			require.Len(t, s.run(first).Errors, 1)
			again := s.run(tt.retry)
			require.Len(t, again.replayed(), 1)
			require.Equal(t, want.Errors, again.Errors)
			require.Equal(t, string(want.Data), string(again.Data))
		})
	}
}

func TestUpload(t *testing.T) {
	t.Parallel()
	s := serve(t, setup{})
	upload := func(content string) answer {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		require.NoError(t, form.WriteField("operations", `{"query": "mutation($f: Upload!) `+
			`{ attach(order: 7, file: $f) @idempotent(key: \"1\") }", "variables": {"f": null}}`))
		require.NoError(t, form.WriteField("map", `{"0": ["variables.f"]}`))
		part, err := form.CreateFormFile("0", "receipt.txt")
		require.NoError(t, err)
		_, err = part.Write([]byte(content))
		require.NoError(t, err)
		require.NoError(t, form.Close())
		got, err := s.post(t.Context(), form.FormDataContentType(), body.Bytes(), nil)
		require.NoError(t, err)
		return got
	}
	require.JSONEq(t, `{"attach": "paid"}`, string(upload("paid").Data))
	again := upload("paid")
	require.JSONEq(t, `{"attach": "paid"}`, string(again.Data))
	require.Equal(t, []string{"attach"}, again.replayed())
	requireRefused(t, upload("owed"), "KEY_REUSED", "new-key")
	require.Equal(t, int64(1), s.runs.Load())
}

// What is too large to be stored is sent once, and not executed again.
func TestMaxResponse(t *testing.T) {
	t.Parallel()
	s := serve(t, setup{
		options:   gqlgenidempotency.Options{MaxResponse: 1000},
		resolvers: payment(&shop.Order{ID: strings.Repeat("7", 1000)}, nil),
	})
	require.Contains(t, s.run(payOnce).Text, strings.Repeat("7", 1000))
	requireRefused(t, s.run(payOnce), "NOT_REPLAYABLE", "never")
	require.Equal(t, int64(1), s.runs.Load())
}

func TestRedis(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{
		Addr: servertest.Redis(t).Addr(), Password: servertest.RedisPassword(), DisableIdentity: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	s := serve(t, setup{store: idempotency.NewRedisStore(client, idempotency.RedisOptions{})})
	const query = `mutation { pay(input: {cents: 1}) @idempotent(key: "1") { id state note } }`
	first, again := s.run(query), s.run(query)
	require.Empty(t, first.Errors)
	require.Equal(t, string(first.Data), string(again.Data))
	require.Equal(t, []string{"pay"}, again.replayed())
	require.Equal(t, int64(1), s.reads.Load())
}

// An operator who ends an operation, or Reconcile, writes data for every selection.
func TestAnswerOfAnOperator(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]answer{
		`{"data": {"id": "7"}}`: {Data: json.RawMessage(`{"pay":{"id":"7"}}`)},
		`{"data": {"id": "7"}, "errors": [null, {"message": "late"}]}`: {Data: json.RawMessage(`{"pay":{"id":"7"}}`)},
		`{"id": "7"}`: {Errors: []map[string]any{{"extensions": map[string]any{"code": "STORE_UNAVAILABLE"}}}},
		`nothing`:     {Errors: []map[string]any{{"extensions": map[string]any{"code": "STORE_UNAVAILABLE"}}}},
	} {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			s := serve(t, setup{resolvers: payment(nil, nil, idempotency.Unknown), runner: idempotency.RunnerOptions{
				Abandoned: idempotency.Refuse, Lease: time.Second,
				Reconcile: func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
					return &idempotency.Response{Status: 200, Body: []byte(body)}, nil
				},
			}})
			s.run(payOnce)
			require.Eventually(t, func() bool {
				got := s.run(payOnce)
				if want.Errors != nil {
					return got.code() == want.code()
				}
				return string(got.Data) == string(want.Data)
			}, patience, 50*time.Millisecond)
			require.Equal(t, int64(1), s.runs.Load())
		})
	}
}
