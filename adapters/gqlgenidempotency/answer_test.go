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

// failWith returns a resolver that fails with failure.
func failWith[T any](failure error) func(context.Context) (T, error) {
	return func(context.Context) (none T, err error) { return none, failure }
}

// resolvePayment returns a resolver of payments that gives the verdicts, and then returns order and failure.
func resolvePayment(order *shop.Order, failure error, verdicts ...idempotency.Verdict) resolvers {
	return resolvers{payOrder: func(ctx context.Context, _ int) (*shop.Order, error) {
		for _, v := range verdicts {
			idempotency.Decide(ctx, v)
		}
		return order, failure
	}}
}

// newDetailedError returns an error with extensions. Each test needs its own error, because gqlgen writes the location
// into the error of a resolver.
func newDetailedError() *gqlerror.Error {
	return &gqlerror.Error{Message: "no <money>", Extensions: map[string]any{
		"code": "DECLINED", "limit": json.Number("12345678901234567890"), "list": []int{1},
	}}
}

// The client receives the same answer from the unguarded field, from the first guarded request, and, apart from the
// marker, from a replay.
func TestAnswersAreEqual(t *testing.T) {
	t.Parallel()
	const payAll = `mutation { pay(input: {cents: 1}) @idempotent(key: "1") { __typename no: id cents state note(upper: true) } }`
	order := &shop.Order{ID: "7", Cents: 1}
	for name, tt := range map[string]struct {
		setup    setup
		document string
		isFinal  bool // the answer is stored, and replayed
	}{
		"object": {setup{}, payAll, true},
		"fragments": {setup{}, `mutation { ...F } fragment F on Mutation { a: pay(input: {cents: 1}) @idempotent(key: "1") { ...O } } ` +
			`fragment O on Order { id ... { state } }`, true},
		"null":                         {setup{}, `mutation { refund(order: "none") @idempotent(key: "1") { id } }`, true},
		"null for a type without null": {setup{resolvers: resolvePayment(nil, nil)}, payOnce, true},
		"a child fails":                {setup{resolvers: resolvers{readNote: failWith[*string](errors.New("no note"))}}, payAll, true},
		"a required child fails":       {setup{resolvers: resolvers{readState: failWith[string](newDetailedError())}}, payAll, true},
		"a child panics": {setup{resolvers: resolvers{readState: func(context.Context) (string, error) {
			panic("oops")
		}}}, payAll, true},
		"error":          {setup{resolvers: resolvePayment(order, errors.New("not now"))}, payOnce, false},
		"detailed error": {setup{resolvers: resolvePayment(nil, newDetailedError())}, payOnce, false},
		"several errors": {setup{
			resolvers: resolvePayment(nil, gqlerror.List{newDetailedError(), {Message: "nor this"}}),
		}, payOnce, false},
		"error, kept": {setup{resolvers: resolvePayment(nil, newDetailedError(), idempotency.Keep)}, payOnce, true},
		"panic": {setup{resolvers: resolvers{payOrder: func(context.Context, int) (*shop.Order, error) {
			panic("oops")
		}}}, payOnce, false},
		"released": {setup{resolvers: resolvePayment(order, nil, idempotency.Keep, idempotency.Free)}, payOnce, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.setup.isUnguarded = true
			unguarded := startService(t, tt.setup).execute(tt.document)
			tt.setup.isUnguarded = false
			s := startService(t, tt.setup)
			first := s.execute(tt.document)
			require.Equal(t, unguarded.Text, first.Text)
			again := s.execute(tt.document)
			require.Equal(t, tt.isFinal, len(again.replayedFields()) == 1)
			require.Equal(t, map[bool]int64{true: 1, false: 2}[tt.isFinal], s.runs.Load())
			if tt.isFinal {
				require.Equal(t, first.Status, again.Status)
				require.Equal(t, first.Errors, again.Errors)
				mark := fmt.Sprintf(`,"extensions":{"idempotency":{"replayed":[%q]}}}`, again.replayedFields()[0])
				require.Equal(t, strings.TrimSuffix(first.Text, "}")+mark, again.Text)
			}
		})
	}
}

// A replay has the errors of the first answer as they were presented. The error presenter does not run again, because
// the presenter might hide a stored error, whose Go type is lost.
func TestErrorsArePresentedOnce(t *testing.T) {
	t.Parallel()
	known := errors.New("declined")
	s := startService(t, setup{resolvers: resolvePayment(nil, known, idempotency.Keep), adjustServer: func(graph *handler.Server) {
		graph.SetErrorPresenter(func(ctx context.Context, err error) *gqlerror.Error {
			if errors.Is(err, known) {
				return graphql.DefaultErrorPresenter(ctx, err)
			}
			return gqlerror.Errorf("hidden")
		})
	}})
	first, again := s.execute(payOnce), s.execute(payOnce)
	require.Equal(t, "declined", first.Errors[0]["message"])
	require.Equal(t, first.Errors, again.Errors)
	require.Equal(t, []string{"pay"}, again.replayedFields())
}

// The retry must select the same fields as the first request. The spelling of the selection may differ.
func TestSelection(t *testing.T) {
	t.Parallel()
	document := func(selection string) string {
		return `mutation M($no: Boolean! = false) { pay(input: {cents: 1}) @idempotent(key: "1") { ` + selection + ` } }`
	}
	for name, tt := range map[string]struct {
		first, retry  string
		sameSelection bool
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
			s := startService(t, setup{})
			use := `... @include(if: $no) { id }` // makes both documents use the variable
			first := s.execute(document(tt.first + " " + use))
			require.Empty(t, first.Errors)
			again := s.execute(document(tt.retry + " " + use))
			require.Equal(t, int64(1), s.runs.Load())
			if tt.sameSelection {
				require.Equal(t, string(first.Data), string(again.Data))
				return
			}
			requireRefused(t, again, "NOT_REPLAYABLE", "never")
		})
	}
}

// A retry may give the field another alias, and spell the document in another way. The errors of the replay have the paths
// and locations that the first answer would have had with the document of the retry.
func TestErrorsOfAnotherDocument(t *testing.T) {
	t.Parallel()
	const first = `mutation { first: pay(input: {cents: 1}) @idempotent(key: "1") { id no: note } }`
	upstream := func() *gqlerror.Error { // an error that the resolver has received from another server
		return &gqlerror.Error{Message: "elsewhere", Path: ast.Path{ast.PathName("charge"), ast.PathIndex(0)},
			Locations: []gqlerror.Location{{Line: 7, Column: 8}}}
	}
	noNote := failWith[*string](errors.New("no note"))
	declined := func() resolvers { return resolvePayment(nil, newDetailedError(), idempotency.Keep) }
	for name, tt := range map[string]struct {
		newResolvers  func() resolvers
		retryDocument string
	}{
		"error of the field": {declined, "mutation {\n  second: pay(input: {cents: 1}) @idempotent(key: \"1\") { id no: note } }"},
		"error of a child": {func() resolvers { return resolvers{readNote: noNote} },
			"mutation M {\n  second: pay(input: {cents: 1}) @idempotent(key: \"1\") { id\n ...N } }\n fragment N on Order {\n no: note }"},
		"retry without an alias": {declined, `mutation { pay(input: {cents: 1}) @idempotent(key: "1") { id no: note } }`},
		"error of another server": {func() resolvers { return resolvePayment(nil, upstream(), idempotency.Keep) },
			"mutation {\n  second: pay(input: {cents: 1}) @idempotent(key: \"1\") { id no: note } }"},
		"retry with the same document": {func() resolvers { return resolvePayment(nil, upstream(), idempotency.Keep) }, first},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := startService(t, setup{resolvers: tt.newResolvers()}).execute(tt.retryDocument)
			require.Len(t, want.Errors, 1)
			require.Empty(t, want.replayedFields())
			s := startService(t, setup{resolvers: tt.newResolvers()})
			require.Len(t, s.execute(first).Errors, 1)
			again := s.execute(tt.retryDocument)
			require.Len(t, again.replayedFields(), 1)
			require.Equal(t, want.Errors, again.Errors)
			require.Equal(t, string(want.Data), string(again.Data))
		})
	}
}

func TestUpload(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{})
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
	require.Equal(t, []string{"attach"}, again.replayedFields())
	requireRefused(t, upload("owed"), "KEY_REUSED", "new-key")
	require.Equal(t, int64(1), s.runs.Load())
}

// An answer that is too large to be stored reaches the client, and the field is not executed again.
func TestMaxResponse(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{
		guardOptions: gqlgenidempotency.Options{MaxResponse: 1000},
		resolvers:    resolvePayment(&shop.Order{ID: strings.Repeat("7", 1000)}, nil),
	})
	require.Contains(t, s.execute(payOnce).Text, strings.Repeat("7", 1000))
	requireRefused(t, s.execute(payOnce), "NOT_REPLAYABLE", "never")
	require.Equal(t, int64(1), s.runs.Load())
}

func TestRedis(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{
		Addr: servertest.Redis(t).Addr(), Password: servertest.RedisPassword(), DisableIdentity: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	s := startService(t, setup{store: idempotency.NewRedisStore(client, idempotency.RedisOptions{})})
	const query = `mutation { pay(input: {cents: 1}) @idempotent(key: "1") { id state note } }`
	first, again := s.execute(query), s.execute(query)
	require.Empty(t, first.Errors)
	require.Equal(t, string(first.Data), string(again.Data))
	require.Equal(t, []string{"pay"}, again.replayedFields())
	require.Equal(t, int64(1), s.reads.Load())
}

// The data that an operator or Reconcile writes answers every selection.
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
			s := startService(t, setup{resolvers: resolvePayment(nil, nil, idempotency.Unknown), runnerOptions: idempotency.RunnerOptions{
				Abandoned: idempotency.Refuse, Lease: time.Second,
				Reconcile: func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
					return &idempotency.Response{Status: 200, Body: []byte(body)}, nil
				},
			}})
			s.execute(payOnce)
			require.Eventually(t, func() bool {
				got := s.execute(payOnce)
				if want.Errors != nil {
					return got.errorCode() == want.errorCode()
				}
				return string(got.Data) == string(want.Data)
			}, waitLimit, 50*time.Millisecond)
			require.Equal(t, int64(1), s.runs.Load())
		})
	}
}
