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

// Sender describes how a [Receiver] verifies and identifies the deliveries of a sender. [Standard], [Stripe], [GitHub]
// and [Shopify] return a Sender. For any other sender, fill in the fields.
type Sender struct {
	// Name is the user of the keys (see [idempotency.Key]), so two senders with different names never share a key,
	// whatever IDs they use. Give each account, and each endpoint that gets the same events, a Sender with a different
	// name, because a delivery with a known name and ID does not run again. Name must not be empty.
	Name string

	// Verify checks the signature of the delivery, and returns the ID of the delivery: all attempts at a delivery have
	// the same ID, and two deliveries have different IDs. The parameter body is the whole body as sent. If Verify returns
	// an error, the Receiver refuses the delivery, see [ErrSignature]. If the ID is empty or an invalid key, the Receiver
	// refuses the delivery with 400.
	//
	// Verify must compare signatures in constant time, as [hmac.Equal] does, must be safe for concurrent use, and must
	// neither keep nor change its arguments.
	Verify func(header http.Header, body []byte) (id string, err error)

	// TTL must be longer than the time for which the sender repeats a delivery. TTL applies if Options.TTL is zero. Zero
	// means 24 hours.
	TTL time.Duration

	// MaxBody is the size of the largest body of the sender, in bytes. MaxBody applies if Options.MaxBody is zero. Zero
	// means 1 MiB.
	MaxBody int64

	secretFaults error
}

// Standard returns a Sender with the given name for the many senders that follow Standard Webhooks. The ID of a delivery
// is webhook-id. Each of secrets is a secret or a public key:
//
//   - A secret, in base64 with or without the prefix "whsec_", verifies signatures of version v1 (HMAC-SHA256).
//   - A public key, in base64 with the prefix "whpk_", verifies signatures of version v1a (Ed25519).
//
// Standard also accepts the header fields svix-id, svix-timestamp and svix-signature of Svix. Senders sign each attempt
// again, so the timestamp must be within 5 minutes of now.
//
// TTL is 7 days, because the schedule that the specification gives as an example ends after 75 hours, and many senders
// let people repeat a delivery later. See
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
				found.hmacSignatures = appendDecoded(found.hmacSignatures, base64.StdEncoding.DecodeString, encoded)
			case "v1a":
				found.ed25519Signatures = appendDecoded(found.ed25519Signatures, base64.StdEncoding.DecodeString, encoded)
			}
		}
		if err := checkTimestamp(timestamp); err != nil {
			return "", err
		}
		return id, keys.verifySignatures(found, id+"."+timestamp+".", body)
	}
	return Sender{Name: name, Verify: verify, TTL: 7 * 24 * time.Hour, secretFaults: fault}
}

// Stripe returns a Sender for Stripe-Signature, with signatures of version v1. The ID of a delivery is the member "id" of
// the event. A secret is used unchanged, with its prefix "whsec_". Stripe signs each attempt again, so the timestamp must
// be within 5 minutes of now.
//
// Test events from Stripe's dashboard share an ID that ends in zeros, for example evt_00000000000000. For such an ID, the
// SHA-256 of the body becomes part of the key, so that two different test events are two deliveries.
//
// TTL is 30 days, because Stripe tries for three days, and lists missed events for 30 days. See
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
				found.hmacSignatures = appendDecoded(found.hmacSignatures, hex.DecodeString, value)
			}
		}
		if err := checkTimestamp(timestamp); err != nil {
			return "", err
		}
		if err := keys.verifySignatures(found, timestamp+".", body); err != nil {
			return "", err
		}
		return stripeID(body), nil
	}
	return Sender{Name: "stripe", Verify: verify, TTL: 30 * 24 * time.Hour, secretFaults: fault}
}

// stripeID returns the ID of the event in body, or the empty string if body has no event.
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

// GitHub returns a Sender for X-Hub-Signature-256. The ID of a delivery is X-GitHub-Delivery, which stays the same when
// somebody redelivers the delivery. GitHub signs neither the ID nor a time, so whoever has seen a delivery can send it
// with a different ID. TLS keeps deliveries secret.
//
// TTL is 7 days, because GitHub does not retry by itself, and lets people redeliver for 3 days, or for 7 days in older
// versions of Enterprise Server. MaxBody is 25 MiB, because GitHub sends up to 25 MB. See
// https://docs.github.com/en/webhooks.
func GitHub(secrets ...string) Sender {
	keys, fault := parseKeys(secrets, parseRawKey)
	verify := func(h http.Header, body []byte) (string, error) {
		var found signatures
		if encoded, ok := strings.CutPrefix(h.Get("X-Hub-Signature-256"), "sha256="); ok {
			found.hmacSignatures = appendDecoded(nil, hex.DecodeString, encoded)
		}
		return h.Get("X-GitHub-Delivery"), keys.verifySignatures(found, "", body)
	}
	return Sender{Name: "github", Verify: verify, TTL: 7 * 24 * time.Hour, MaxBody: 25 << 20, secretFaults: fault}
}

// Shopify returns a Sender for Shopify-Hmac-Sha256. The ID of a delivery is Shopify-Webhook-Id. The older names of both
// header fields, with the prefix X-, are accepted, too. The secrets are client secrets of the app. Shopify signs neither
// the ID nor a time; see [GitHub] for the consequence.
//
// Shopify-Event-Id is not the key, although "Ignore duplicate webhooks", an older page of Shopify, compares it: if an
// action causes several deliveries, for example orders/create and orders/paid, all of them have the same
// Shopify-Event-Id.
//
// TTL is 24 hours, because Shopify tries 8 times in 4 hours. See
// https://shopify.dev/docs/apps/build/webhooks/verify-deliveries and
// https://shopify.dev/docs/apps/build/webhooks/delivery-structure.
func Shopify(secrets ...string) Sender {
	keys, fault := parseKeys(secrets, parseRawKey)
	verify := func(h http.Header, body []byte) (string, error) {
		encoded := cmp.Or(h.Get("Shopify-Hmac-Sha256"), h.Get("X-Shopify-Hmac-Sha256"))
		found := signatures{hmacSignatures: appendDecoded(nil, base64.StdEncoding.DecodeString, encoded)}
		id := cmp.Or(h.Get("Shopify-Webhook-Id"), h.Get("X-Shopify-Webhook-Id"))
		return id, keys.verifySignatures(found, "", body)
	}
	return Sender{Name: "shopify", Verify: verify, TTL: 24 * time.Hour, secretFaults: fault}
}

// signingKeys are the keys with which a sender may sign, by algorithm.
type signingKeys struct {
	hmacSecrets [][]byte
	publicKeys  []ed25519.PublicKey
}

// signatures are the signatures of a delivery, by algorithm.
type signatures struct{ hmacSignatures, ed25519Signatures [][]byte }

// parseKeys parses each secret with parse. Its errors name a secret by its position, because errors end up in logs.
func parseKeys(secrets []string, parse func(secret string, keys *signingKeys) error) (all signingKeys, faults error) {
	if len(secrets) == 0 {
		faults = errors.New("webhook: there is no secret, so every delivery would be refused: pass the secret of the sender")
	}
	for i, secret := range secrets {
		if err := parse(secret, &all); err != nil {
			faults = errors.Join(faults, fmt.Errorf("webhook: secret %d: %w", i+1, err))
		}
	}
	return all, faults
}

// parseRawKey adds secret to keys unchanged.
func parseRawKey(secret string, keys *signingKeys) error {
	if secret == "" {
		return errors.New("the secret is empty")
	}
	keys.hmacSecrets = append(keys.hmacSecrets, []byte(secret))
	return nil
}

// parseStandardKey adds a secret or a public key of Standard Webhooks to keys.
func parseStandardKey(secret string, keys *signingKeys) error {
	if strings.HasPrefix(secret, "whsk_") {
		return errors.New("the secret is a private key, which only the sender must have: use its public key, whpk_")
	}
	encodedKey, isPublicKey := strings.CutPrefix(secret, "whpk_")
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(encodedKey, "whsec_"))
	switch {
	case err != nil:
		return err
	case !isPublicKey:
		return parseRawKey(string(key), keys)
	case len(key) != ed25519.PublicKeySize:
		return fmt.Errorf("a public key of Ed25519 has %d bytes, not %d bytes", ed25519.PublicKeySize, len(key))
	}
	keys.publicKeys = append(keys.publicKeys, key)
	return nil
}

// verifySignatures returns an error unless a signature in found signs prefix and body with one of the keys.
func (k signingKeys) verifySignatures(found signatures, prefix string, body []byte) error {
	if k.verifyHMAC(found.hmacSignatures, prefix, body) || k.verifyEd25519(found.ed25519Signatures, prefix, body) {
		return nil
	}
	return fmt.Errorf("none of %d signatures is right", len(found.hmacSignatures)+len(found.ed25519Signatures))
}

func (k signingKeys) verifyHMAC(found [][]byte, prefix string, body []byte) bool {
	if len(found) == 0 {
		return false // saves the hash of the body
	}
	for _, key := range k.hmacSecrets {
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

// maxEd25519Signatures bounds the signatures that are verified with each public key. A sender sends two signatures while
// its key changes. An attacker can send thousands, and each verification hashes the whole body.
const maxEd25519Signatures = 8

func (k signingKeys) verifyEd25519(found [][]byte, prefix string, body []byte) bool {
	if len(k.publicKeys) == 0 || len(found) == 0 {
		return false
	}
	content := append([]byte(prefix), body...) // ed25519.Verify needs the content in one piece
	for _, signature := range found[:min(len(found), maxEd25519Signatures)] {
		for _, key := range k.publicKeys {
			if ed25519.Verify(key, content, signature) {
				return true
			}
		}
	}
	return false
}

// appendDecoded appends the decoded signature to signatures. If encoded cannot be decoded, it may be a signature of a
// different kind, so appendDecoded ignores it.
func appendDecoded(signatures [][]byte, decode func(string) ([]byte, error), encoded string) [][]byte {
	if signature, err := decode(encoded); err == nil {
		return append(signatures, signature)
	}
	return signatures
}

// timestampTolerance is the tolerance of the libraries of Stripe and Standard Webhooks.
const timestampTolerance = 5 * time.Minute

// checkTimestamp returns an error unless timestamp, in seconds since 1970, is within timestampTolerance of now.
func checkTimestamp(timestamp string) error {
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return fmt.Errorf("timestamp: %w", err)
	}
	if age := time.Since(time.Unix(seconds, 0)); age.Abs() > timestampTolerance {
		return fmt.Errorf("timestamp: %v away from now", age)
	}
	return nil
}
