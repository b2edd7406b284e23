package webhook

import (
	"cmp"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Sender is what a [Receiver] knows about those who send to it. [Standard], [Stripe], [GitHub] and [Shopify] return one.
// For another sender, fill in one of your own.
type Sender struct {
	// Name is the user of the keys, see [idempotency.Key]: two senders with different names never share a key, whatever
	// IDs they use. Give each account, and each endpoint that gets the same events, a Sender with a name of its own, because
	// a delivery with a known name and ID does not run again. Name must not be empty.
	Name string

	// Verify checks that the sender has signed the delivery, and returns its ID: what every attempt at one delivery has in
	// common, and no two deliveries have. Body is the whole body, as sent. An error refuses the delivery: see
	// [ErrSignature]. An ID that is empty, or that is no valid key, refuses it with 400.
	//
	// Verify must compare signatures in constant time, as [hmac.Equal] does, and must not keep or change its arguments.
	// Many goroutines call it at once.
	Verify func(header http.Header, body []byte) (id string, err error)

	// TTL must be longer than the time for which the sender repeats a delivery. It is used if Options.TTL is zero. Zero means 24 hours.
	TTL time.Duration

	// MaxBody is the largest body that the sender sends, in bytes. It is used if Options.MaxBody is zero. Zero means 1 MiB.
	MaxBody int64

	fault error // of the secrets
}

// Standard is the sender with this name, which follows Standard Webhooks, as many senders do. The ID is webhook-id. Each of
// secrets is a secret or a public key:
//
//   - A secret, in base64 with or without the prefix "whsec_", verifies signatures of version v1 (HMAC-SHA256).
//   - A public key, in base64 with the prefix "whpk_", verifies signatures of version v1a (Ed25519).
//
// Standard also accepts the names svix-id, svix-timestamp and svix-signature, which Svix sends instead. Senders sign each
// attempt anew, so the timestamp must be within 5 minutes of now.
//
// TTL is 7 days: the example of a schedule ends after 75 hours, and many senders let people repeat a delivery later. See
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.
func Standard(name string, secrets ...string) Sender {
	keys, fault := parseKeys(secrets, parseStandardKey)
	if strings.HasPrefix(name, "whsec_") || strings.HasPrefix(name, "whpk_") {
		fault = errors.Join(fault, errors.New("webhook: Standard got a key in place of the sender's name"))
	}
	verify := func(h http.Header, body []byte) (string, error) {
		names := "Webhook-"
		if h.Get("Webhook-Signature") == "" {
			names = "Svix-"
		}
		id, timestamp := h.Get(names+"Id"), h.Get(names+"Timestamp")
		var found signatures
		for field := range strings.FieldsSeq(h.Get(names + "Signature")) {
			switch version, encoded, _ := strings.Cut(field, ","); version {
			case "v1":
				found.hmac = appendDecoded(found.hmac, base64.StdEncoding.DecodeString, encoded)
			case "v1a":
				found.ed25519 = appendDecoded(found.ed25519, base64.StdEncoding.DecodeString, encoded)
			}
		}
		if err := checkTimestamp(timestamp); err != nil {
			return "", err
		}
		return id, keys.verify(found, id+"."+timestamp+".", body)
	}
	return Sender{Name: name, Verify: verify, TTL: 7 * 24 * time.Hour, fault: fault}
}

// Stripe is a sender of Stripe-Signature, with signatures of version v1. The ID is the member "id" of the event. A secret is
// used as it is, with its prefix "whsec_". Stripe signs each attempt anew, so the timestamp must be within 5 minutes of now.
//
// Test events that somebody sends from Stripe's dashboard share an ID that ends in zeros, such as evt_00000000000000. The
// SHA-256 of the body follows this ID in the key, so that two test events are two deliveries.
//
// TTL is 30 days: Stripe tries for three days, and lists events for 30 days to those who ask for what they have missed. See
// https://docs.stripe.com/webhooks and https://docs.stripe.com/webhooks/process-undelivered-events.
func Stripe(secrets ...string) Sender {
	keys, fault := parseKeys(secrets, parseRawKey)
	verify := func(h http.Header, body []byte) (string, error) {
		var timestamp string
		var found signatures
		for pair := range strings.SplitSeq(h.Get("Stripe-Signature"), ",") {
			switch name, value, _ := strings.Cut(pair, "="); name {
			case "t":
				timestamp = value
			case "v1":
				found.hmac = appendDecoded(found.hmac, hex.DecodeString, value)
			}
		}
		if err := checkTimestamp(timestamp); err != nil {
			return "", err
		}
		if err := keys.verify(found, timestamp+".", body); err != nil {
			return "", err
		}
		return stripeID(body), nil
	}
	return Sender{Name: "stripe", Verify: verify, TTL: 30 * 24 * time.Hour, fault: fault}
}

// stripeID returns the ID of an event, or the empty string if body is no event.
func stripeID(body []byte) string {
	var event struct {
		ID string `json:"id"`
	}
	_ = json.Unmarshal(body, &event)
	number := event.ID[strings.LastIndexByte(event.ID, '_')+1:]
	if number == "" || strings.Trim(number, "0") != "" {
		return event.ID
	}
	digest := sha256.Sum256(body)
	return event.ID + "-" + hex.EncodeToString(digest[:])
}

// GitHub is a sender of X-Hub-Signature-256. The ID is X-GitHub-Delivery, which a delivery keeps when somebody has it sent
// again. GitHub signs neither this ID nor a time: whoever has seen a delivery can send it with another ID. With TLS, nobody
// sees it.
//
// TTL is 7 days: GitHub does not try again by itself, and lets people have deliveries sent again for 3 days, or 7 in older
// versions of Enterprise Server. MaxBody is 25 MiB, as GitHub's is 25 MB. See https://docs.github.com/en/webhooks.
func GitHub(secrets ...string) Sender {
	keys, fault := parseKeys(secrets, parseRawKey)
	verify := func(h http.Header, body []byte) (string, error) {
		var found signatures
		if encoded, ok := strings.CutPrefix(h.Get("X-Hub-Signature-256"), "sha256="); ok {
			found.hmac = appendDecoded(nil, hex.DecodeString, encoded)
		}
		return h.Get("X-GitHub-Delivery"), keys.verify(found, "", body)
	}
	return Sender{Name: "github", Verify: verify, TTL: 7 * 24 * time.Hour, MaxBody: 25 << 20, fault: fault}
}

// Shopify is a sender of Shopify-Hmac-Sha256. The ID is Shopify-Webhook-Id, which names a delivery. Shopify also accepts
// the older names of both fields, which begin with X-. Secrets are client secrets of the app. Shopify signs neither ID nor
// time, see [GitHub].
//
// Shopify-Event-Id is not the key, although an older page of Shopify, "Ignore duplicate webhooks", compares it: several
// deliveries, such as those of orders/create and orders/paid, have it in common if one action has caused them.
//
// TTL is 24 hours: Shopify tries 8 times in 4 hours. See https://shopify.dev/docs/apps/build/webhooks/verify-deliveries and
// https://shopify.dev/docs/apps/build/webhooks/delivery-structure.
func Shopify(secrets ...string) Sender {
	keys, fault := parseKeys(secrets, parseRawKey)
	verify := func(h http.Header, body []byte) (string, error) {
		encoded := cmp.Or(h.Get("Shopify-Hmac-Sha256"), h.Get("X-Shopify-Hmac-Sha256"))
		found := signatures{hmac: appendDecoded(nil, base64.StdEncoding.DecodeString, encoded)}
		id := cmp.Or(h.Get("Shopify-Webhook-Id"), h.Get("X-Shopify-Webhook-Id"))
		return id, keys.verify(found, "", body)
	}
	return Sender{Name: "shopify", Verify: verify, TTL: 24 * time.Hour, fault: fault}
}

// keys are all keys that a sender may sign with, by the algorithm that they are for.
type keys struct {
	hmac    [][]byte
	ed25519 []ed25519.PublicKey
}

// signatures are those of one delivery, by their algorithm.
type signatures struct{ hmac, ed25519 [][]byte }

// parseKeys adds each secret to the keys by parse. The error names a secret by its place, because errors end up in logs.
func parseKeys(secrets []string, parse func(secret string, keys *keys) error) (all keys, fault error) {
	if len(secrets) == 0 {
		fault = errors.New("webhook: there is no secret: nothing would be accepted")
	}
	for i, secret := range secrets {
		if err := parse(secret, &all); err != nil {
			fault = errors.Join(fault, fmt.Errorf("webhook: secret %d: %w", i+1, err))
		}
	}
	return all, fault
}

// parseRawKey adds a secret that is used as it is.
func parseRawKey(secret string, keys *keys) error {
	if secret == "" {
		return errors.New("it is empty")
	}
	keys.hmac = append(keys.hmac, []byte(secret))
	return nil
}

// parseStandardKey adds a secret or a public key of Standard Webhooks.
func parseStandardKey(secret string, keys *keys) error {
	if strings.HasPrefix(secret, "whsk_") {
		return errors.New("it is a private key, which only the sender must have: want its public key, whpk_")
	}
	encoded, isPublicKey := strings.CutPrefix(secret, "whpk_")
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(encoded, "whsec_"))
	switch {
	case err != nil:
		return err
	case !isPublicKey:
		return parseRawKey(string(key), keys)
	case len(key) != ed25519.PublicKeySize:
		return fmt.Errorf("a public key of Ed25519 has %d bytes, not %d bytes", ed25519.PublicKeySize, len(key))
	}
	keys.ed25519 = append(keys.ed25519, key)
	return nil
}

// verify returns an error unless one of the signatures is that of prefix and body with one of the keys.
func (k keys) verify(found signatures, prefix string, body []byte) error {
	if k.verifyHMAC(found.hmac, prefix, body) || k.verifyEd25519(found.ed25519, prefix, body) {
		return nil
	}
	return fmt.Errorf("none of %d signatures is right", len(found.hmac)+len(found.ed25519))
}

func (k keys) verifyHMAC(found [][]byte, prefix string, body []byte) bool {
	if len(found) == 0 {
		return false // without hashing the body of a stranger
	}
	for _, key := range k.hmac {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(prefix))
		mac.Write(body)
		want := mac.Sum(nil)
		for _, signature := range found {
			if hmac.Equal(signature, want) {
				return true
			}
		}
	}
	return false
}

// mostEd25519 bounds how many signatures are verified by each public key. A sender sends two while it changes its key. A
// stranger can send thousands, and the whole body is hashed for each of them.
const mostEd25519 = 8

func (k keys) verifyEd25519(found [][]byte, prefix string, body []byte) bool {
	if len(k.ed25519) == 0 || len(found) == 0 {
		return false
	}
	content := append([]byte(prefix), body...) // a copy, because package ed25519 takes no parts
	for _, signature := range found[:min(len(found), mostEd25519)] {
		for _, key := range k.ed25519 {
			if ed25519.Verify(key, content, signature) {
				return true
			}
		}
	}
	return false
}

// appendDecoded leaves out what cannot be decoded: it may be a signature of another kind.
func appendDecoded(signatures [][]byte, decode func(string) ([]byte, error), encoded string) [][]byte {
	if signature, err := decode(encoded); err == nil {
		return append(signatures, signature)
	}
	return signatures
}

// tolerance is that of the libraries of Stripe and Standard Webhooks.
const tolerance = 5 * time.Minute

// checkTimestamp returns an error unless a time in seconds since 1970 is within the tolerance of now.
func checkTimestamp(timestamp string) error {
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return fmt.Errorf("timestamp: %w", err)
	}
	if age := time.Since(time.Unix(seconds, 0)); age.Abs() > tolerance {
		return fmt.Errorf("timestamp: %v away from now", age)
	}
	return nil
}
