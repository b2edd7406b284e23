package console_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/console"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// Redis keeps no keys. Operations are found by what it has, and resolved as anywhere.
func TestRedis(t *testing.T) {
	t.Parallel()
	server, client := testservice.NewMiniredis(t)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	claim := begin(t, store, order, time.Second).(idempotency.Checkpointer)
	_, err := claim.Checkpoint(t.Context(), "reserve", []byte(`"secret result"`))
	require.NoError(t, err)
	server.FastForward(2 * time.Second)
	complete(t, store, numbered(2), receipt)
	d := newDesk(t, store)
	require.Equal(t, []string{addressOf(order)}, d.get("").links(`operation[^"]*`))
	require.Equal(t, http.StatusOK, d.post("search", url.Values{"user": {"alice"}}).status)
	require.Equal(t, http.StatusNotImplemented, d.post("search", url.Values{"key": {order.ID}}).status)
	for _, form := range []url.Values{
		{"user": {order.User}, "endpoint": {order.Endpoint}, "key": {order.ID}}, {"operation": {order.OperationID().String()}},
	} {
		found := d.post("search", form)
		require.Contains(t, found.text(), "User not known to this store")
		require.Contains(t, found.text(), "reserve done, 15 B")
	}
	require.Contains(t, d.get(addressOf(numbered(2))).text(), `{"receipt":"R-17"}`)
	form := d.form(d.get(addressOf(order)).page, "answer", "status", "201", "reason", "because")
	require.NotEmpty(t, d.post("change", form).done())
	require.Equal(t, 201, inspect(t, store, order).Response.Status)
	require.Contains(t, d.post("change", d.form(d.get(addressOf(order)).page, "forget", "reason", "because")).text(), "No record")
}

// The store of the service opens what is sealed, and seals what an operator gives. The one behind shows none of it.
func TestSealedStore(t *testing.T) {
	t.Parallel()
	inner := newStore()
	sealed := testservice.MustSeal(t, inner, testservice.Sealing("key"))
	abandon(t, sealed, order)
	complete(t, sealed, numbered(2), receipt)
	d := newDesk(t, sealed)
	form := d.form(d.get(addressOf(order)).page, "answer", "status", "201", "header", "Content-Type: text/plain",
		"body", "the secret answer", "reason", "because")
	done := d.post("change", form)
	require.NotEmpty(t, done.done(), done.fault())
	require.Contains(t, done.text(), "the secret answer")
	require.Contains(t, d.get(addressOf(numbered(2))).text(), `{"receipt":"R-17"}`)
	hidden := newDesk(t, sealed, func(o *console.Options) { o.Show = nil })
	require.NotContains(t, hidden.get(addressOf(order)).text(), "the secret answer")

	behind := newDesk(t, inner)
	for _, key := range []idempotency.Key{order, numbered(2)} {
		text := behind.get(addressOf(key)).text()
		require.Contains(t, text, "It is sealed: only the service can open it.")
		require.NotContains(t, text, "secret")
		require.NotContains(t, text, "receipt")
	}
	require.NotContains(t, string(inspect(t, inner, order).Response.Body), "secret")
	require.Regexp(t, `By bob Reason because`, d.get(addressOf(order)).text())
	require.Regexp(t, `By sealed: only the service can open the name and the reason Answer`, behind.get(addressOf(order)).text())
}
