package console_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/console"
)

// An operation's page shows the requests that were refused with its key, and no others.
func TestReusedKeys(t *testing.T) {
	t.Parallel()
	store := newStore()
	complete(t, store, order, receipt)
	complete(t, store, numbered(2), receipt)
	d := newDesk(t, store, func(o *console.Options) {
		o.Show = nil // the names are not secret
		o.Differences = func(e idempotency.Event) []string { return strings.Fields(e.Note) }
	})
	observe := func(o idempotency.Outcome, key idempotency.Key, names string) {
		d.console.Observe(t.Context(), idempotency.Event{Outcome: o, Key: key, Note: names})
	}
	observe(idempotency.OutcomeReplayed, order, "")
	require.NotContains(t, d.get(addressOf(order)).text(), "Reused key")
	observe(idempotency.OutcomeKeyReused, numbered(2), "/other")
	observe(idempotency.OutcomeKeyReused, order, "/amount <i>")
	got := d.get(addressOf(order))
	require.Contains(t, got.text(), "because another one came before: 1.")
	require.Contains(t, got.text(), "UTC just now /amount, <i>")
	require.NotContains(t, got.text(), "/other")

	for i := range 6 {
		observe(idempotency.OutcomeKeyReused, order, fmt.Sprint("/", i))
	}
	got = d.get(addressOf(order))
	require.Contains(t, got.text(), "came before: 7.")
	rows := regexp.MustCompile(`<td>/\d</td>`).FindAllString(got.page, -1)
	require.Equal(t, "<td>/5</td><td>/4</td><td>/3</td><td>/2</td><td>/1</td>", strings.Join(rows, ""), "the newest ones")

	for range 997 {
		observe(idempotency.OutcomeKeyReused, numbered(2), "")
	}
	require.Contains(t, d.get(addressOf(order)).text(), "came before: 3.")
	require.Contains(t, d.get(addressOf(numbered(2))).text(), "came before: 997.", "the newest 1,000 of all are remembered")
}

// Without names, refusals are shown all the same.
func TestReusedKeysWithoutNames(t *testing.T) {
	t.Parallel()
	d := newDesk(t, newStoreWith(t, order))
	d.console.Observe(t.Context(), idempotency.Event{Outcome: idempotency.OutcomeKeyReused, Key: order})
	require.Contains(t, d.get(addressOf(order)).text(), "just now not known")
}
