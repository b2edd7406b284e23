package console

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// find is the form that searches, with what was typed in.
type find struct{ url.Values }

// mostLookedAt is among how many records an operation is looked for of which only the ID is known.
const mostLookedAt = 50_000

// Most is for the page.
func (find) Most() int { return mostLookedAt }

// search leads to what a form asks for. It is posted for keys to stay out of addresses, which are logged and remembered.
func (c *Console) search(v *visit) {
	form, ok := v.form()
	if !ok {
		return
	}
	f := &find{form}
	user, endpoint, key := form.Get("user"), form.Get("endpoint"), form.Get("key")
	switch {
	case form.Get("operation") != "":
		c.searchOperation(v, f)
	case user != "" && endpoint != "" && key != "":
		v.see(addressOf(keyOf(user, endpoint, key).Digest()))
	case user != "" && endpoint == "" && key == "":
		v.see("./" + (&list{User: user}).address(everything))
	default:
		f.fail(v, http.StatusUnprocessableEntity, "A key is found by user, endpoint and key together. A user alone is "+
			"enough for all operations of that user.")
	}
}

// keyOf returns the key that a client has sent, in quotes or bare. The work of a Runner may have any other.
func keyOf(user, endpoint, sent string) idempotency.Key {
	id, err := idempotency.ParseKey([]string{sent})
	if err != nil {
		id = sent
	}
	return idempotency.Key{User: user, Endpoint: endpoint, ID: id}.Bounded()
}

func (f *find) fail(v *visit, status int, why string) {
	v.write(status, page{Title: "Search", Fault: why, Find: f, Back: "./"})
}

// searchOperation leads to the operation with a digest, or with the ID that logs and traces have.
func (c *Console) searchOperation(v *visit, f *find) {
	text := strings.TrimSpace(f.Get("operation"))
	if digest, err := parseDigest(text); err == nil {
		v.see(addressOf(digest))
		return
	}
	id, err := uuid.Parse(text)
	if err != nil {
		f.fail(v, http.StatusUnprocessableEntity, "An operation ID is a UUID. A digest has 64 hexadecimal digits.")
		return
	}
	entry, err := c.lookFor(v.r.Context(), func(e idempotency.Entry) bool { return e.OperationID() == id })
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		f.fail(v, http.StatusNotFound, fmt.Sprintf("The operation is not among the abandoned ones, and not among the %d "+
			"oldest records. Search by user, endpoint and key, or by digest.", mostLookedAt))
	case err != nil:
		c.fail(v, err, "./")
	default:
		v.see(addressOf(entry.Digest))
	}
}

// lookFor goes through the store: abandoned operations first, and then the oldest records.
func (c *Console) lookFor(ctx context.Context, is func(idempotency.Entry) bool) (idempotency.Entry, error) {
	for _, states := range [][]idempotency.State{{idempotency.StateAbandoned}, nil} {
		listing, err := c.store.List(ctx, idempotency.ListRequest{States: states, Limit: mostLookedAt})
		if err != nil {
			return idempotency.Entry{}, err
		}
		if i := slices.IndexFunc(listing.Entries, is); i >= 0 {
			return listing.Entries[i], nil
		}
	}
	return idempotency.Entry{}, idempotency.ErrNoRecord
}

// inspect returns what the store has of an operation. A store that is no Resolver finds it by its key, if it has that.
func (c *Console) inspect(ctx context.Context, digest [32]byte) (idempotency.Entry, error) {
	if store, ok := c.store.(interface {
		InspectDigest(context.Context, [32]byte) (idempotency.Entry, error)
	}); ok {
		entry, err := store.InspectDigest(ctx, digest)
		if !errors.Is(err, errors.ErrUnsupported) {
			return entry, err
		}
	}
	entry, err := c.lookFor(ctx, func(e idempotency.Entry) bool { return e.Digest == digest })
	if err != nil || entry.Key == (idempotency.Key{}) {
		return entry, err
	}
	return c.store.Inspect(ctx, entry.Key)
}

func addressOf(digest [32]byte) string { return "operation?digest=" + hex.EncodeToString(digest[:]) }

func parseDigest(text string) (digest [32]byte, err error) {
	raw, err := hex.DecodeString(text)
	if err == nil && len(raw) != len(digest) {
		err = fmt.Errorf("a digest of %d bytes", len(raw))
	}
	if err != nil {
		return digest, err
	}
	return [32]byte(raw), nil
}
