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

// searchForm has the values of the form for searches.
type searchForm struct{ url.Values }

// maxScanned bounds how many records a search by operation ID reads, because stores find records only by key or digest.
const maxScanned = 50_000

// Most returns maxScanned to the template.
func (searchForm) Most() int { return maxScanned }

// serveSearch redirects to the operation or the list that a form describes. The form is posted because servers log addresses and
// browsers remember them, and a key must not appear there.
func (c *Console) serveSearch(req *request) {
	form, ok := req.parseForm()
	if !ok {
		return
	}
	searched := &searchForm{form}
	user, endpoint, key := form.Get("user"), form.Get("endpoint"), form.Get("key")
	switch {
	case form.Get("operation") != "":
		c.searchOperation(req, searched)
	case user != "" && endpoint != "" && key != "":
		req.redirectTo(operationAddress(clientKey(user, endpoint, key).Digest()))
	case user != "" && endpoint == "" && key == "":
		req.redirectTo("./" + (&listPage{User: user}).firstPageAddress(allStates))
	default:
		searched.refuseSearch(req, http.StatusUnprocessableEntity, "A key is found by user, endpoint and key together. "+
			"A user alone is enough for all operations of that user.")
	}
}

// clientKey returns the key of an operation from the Idempotency-Key that a client has sent, in quotes or bare. Any other text is
// taken as the ID itself, because a Runner accepts any ID.
func clientKey(user, endpoint, sent string) idempotency.Key {
	id, err := idempotency.ParseKey([]string{sent})
	if err != nil {
		id = sent
	}
	return idempotency.Key{User: user, Endpoint: endpoint, ID: id}.Bounded()
}

func (f *searchForm) refuseSearch(req *request, status int, why string) {
	req.writePage(status, pageData{Title: "Search", Fault: why, Find: f, Back: "./"})
}

// searchOperation redirects to the operation with a digest, or with the operation ID that logs and traces show.
func (c *Console) searchOperation(req *request, searched *searchForm) {
	text := strings.TrimSpace(searched.Get("operation"))
	if digest, err := parseDigest(text); err == nil {
		req.redirectTo(operationAddress(digest))
		return
	}
	id, err := uuid.Parse(text)
	if err != nil {
		searched.refuseSearch(req, http.StatusUnprocessableEntity, "An operation ID is a UUID. A digest has 64 hexadecimal digits.")
		return
	}
	entry, err := c.findEntry(req.httpRequest.Context(), func(e idempotency.Entry) bool { return e.OperationID() == id })
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		searched.refuseSearch(req, http.StatusNotFound, fmt.Sprintf("The operation is not among the abandoned ones, and not "+
			"among the %d oldest records. Search by user, endpoint and key, or by digest.", maxScanned))
	case err != nil:
		c.reportStoreError(req, err, "./")
	default:
		req.redirectTo(operationAddress(entry.Digest))
	}
}

// findEntry returns the first entry that matches, among the abandoned operations and then among the oldest records.
func (c *Console) findEntry(ctx context.Context, matches func(idempotency.Entry) bool) (idempotency.Entry, error) {
	for _, states := range [][]idempotency.State{{idempotency.StateAbandoned}, nil} {
		listing, err := c.store.List(ctx, idempotency.ListRequest{States: states, Limit: maxScanned})
		if err != nil {
			return idempotency.Entry{}, err
		}
		if i := slices.IndexFunc(listing.Entries, matches); i >= 0 {
			return listing.Entries[i], nil
		}
	}
	return idempotency.Entry{}, idempotency.ErrNoRecord
}

// inspectDigest returns the entry of the operation with digest. In a store without InspectDigest, inspectDigest scans the
// records for digest, and inspects the record by key if the store knows the key.
func (c *Console) inspectDigest(ctx context.Context, digest [32]byte) (idempotency.Entry, error) {
	if store, ok := c.store.(interface {
		InspectDigest(context.Context, [32]byte) (idempotency.Entry, error)
	}); ok {
		entry, err := store.InspectDigest(ctx, digest)
		if !errors.Is(err, errors.ErrUnsupported) {
			return entry, err
		}
	}
	entry, err := c.findEntry(ctx, func(e idempotency.Entry) bool { return e.Digest == digest })
	if err != nil || entry.Key == (idempotency.Key{}) {
		return entry, err
	}
	return c.store.Inspect(ctx, entry.Key)
}

func operationAddress(digest [32]byte) string {
	return "operation?digest=" + hex.EncodeToString(digest[:])
}

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
