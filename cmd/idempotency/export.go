package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/idempotency-go/idempotency"
)

// exportSecretVariable is the environment variable with the secret for pseudonyms.
const exportSecretVariable = "IDEMPOTENCY_EXPORT_SECRET"

// exportCommand prints records as JSON lines.
type exportCommand struct {
	searchFlags
	Names bool `help:"Print user, endpoint, key and note as they are, and not as pseudonyms."`
}

func (c *exportCommand) Run(a *app) error {
	request, err := c.newListRequest(time.Now())
	store, err := a.openStore(err)
	if err != nil {
		return err
	}
	defer store.closeClient()
	exporter := &exporter{encoder: json.NewEncoder(a.out), pseudonymSecret: a.exportSecret(), withNames: c.Names}
	exporter.encoder.SetEscapeHTML(false)
	request.Scan, request.Each = math.MaxInt, exporter.writeEntry
	listing, err := a.loadListing(store, request)
	fmt.Fprintf(a.stderr, "Records exported: %d. Records that cannot be read: %d.\n", exporter.writtenCount, listing.Unreadable)
	switch {
	case err != nil:
		return err
	case listing.Partial || listing.Unreadable > 0:
		return exitSilently(exitUnknown)
	case exporter.writtenCount == 0:
		return exitSilently(exitNothing)
	}
	return nil
}

// exportSecret returns the secret of the environment or, without one, a random secret.
func (a *app) exportSecret() []byte {
	if secret, ok := a.lookupEnv(exportSecretVariable); ok && secret != "" {
		return []byte(secret)
	}
	return []byte(rand.Text())
}

// exporter prints entries as lines of JSON.
type exporter struct {
	encoder         *json.Encoder
	pseudonymSecret []byte
	withNames       bool
	writtenCount    int
}

func (x *exporter) writeEntry(e idempotency.Entry) error {
	line := newJSONEntry(e, nil, false)
	if !x.withNames {
		line.User, line.Endpoint, line.Key = x.makePseudonym("user", line.User), x.makePseudonym("endpoint", line.Endpoint),
			x.makePseudonym("key", line.Key)
		line.Note = ""
	}
	x.writtenCount++
	return x.encoder.Encode(line)
}

// makePseudonym returns the same text for the same part of a key, and a different text for another part or with another secret. An
// empty text stays empty.
func (x *exporter) makePseudonym(part, text string) string {
	if text == "" {
		return ""
	}
	mac := hmac.New(sha256.New, x.pseudonymSecret)
	mac.Write([]byte(part + "\x00" + text))
	return part + "-" + hex.EncodeToString(mac.Sum(nil)[:16])
}
