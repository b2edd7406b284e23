package webhook

import (
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
	// IDs they use. If several accounts with secrets of their own send to one path, give each a Sender with a name of its
	// own. Name must not be empty.
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

// Standard is a sender that follows Standard Webhooks, with signatures of version v1 (HMAC-SHA256). The ID is webhook-id.
// Secrets are in base64, with or without the prefix "whsec_". Those who send sign each attempt anew, so webhook-timestamp
// must be within 5 minutes of now.
//
// TTL is 7 days: the example of a schedule ends after 75 hours, and many senders let people repeat a delivery later. See
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.
func Standard(secrets ...string) Sender {
	keys, fault := keysOf(secrets, func(secret string) ([]byte, error) {
		return base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	})
	verify := func(h http.Header, body []byte) (string, error) {
		id, timestamp := h.Get("Webhook-Id"), h.Get("Webhook-Timestamp")
		var signatures [][]byte
		for signature := range strings.FieldsSeq(h.Get("Webhook-Signature")) {
			if encoded, ok := strings.CutPrefix(signature, "v1,"); ok {
				signatures = appendDecoded(signatures, base64.StdEncoding.DecodeString, encoded)
			}
		}
		return id, errors.Join(recent(timestamp), keys.check(signatures, id+"."+timestamp+".", body))
	}
	return Sender{Name: "standard-webhooks", Verify: verify, TTL: 7 * 24 * time.Hour, fault: fault}
}

// Stripe is a sender of Stripe-Signature, with signatures of version v1. The ID is the member "id" of the event. A secret is
// used as it is, with its prefix "whsec_". Stripe signs each attempt anew, so the timestamp must be within 5 minutes of now.
//
// TTL is 30 days: Stripe tries for three days, and lists events for 30 days to those who ask for what they have missed. See
// https://docs.stripe.com/webhooks and https://docs.stripe.com/webhooks/process-undelivered-events.
func Stripe(secrets ...string) Sender {
	keys, fault := keysOf(secrets, asItIs)
	verify := func(h http.Header, body []byte) (string, error) {
		var timestamp string
		var signatures [][]byte
		for pair := range strings.SplitSeq(h.Get("Stripe-Signature"), ",") {
			switch name, value, _ := strings.Cut(pair, "="); name {
			case "t":
				timestamp = value
			case "v1":
				signatures = appendDecoded(signatures, hex.DecodeString, value)
			}
		}
		if err := errors.Join(recent(timestamp), keys.check(signatures, timestamp+".", body)); err != nil {
			return "", err
		}
		var event struct {
			ID string `json:"id"`
		}
		_ = json.Unmarshal(body, &event) // what is no event has no ID
		return event.ID, nil
	}
	return Sender{Name: "stripe", Verify: verify, TTL: 30 * 24 * time.Hour, fault: fault}
}

// GitHub is a sender of X-Hub-Signature-256. The ID is X-GitHub-Delivery, which a delivery keeps when somebody has it sent
// again. GitHub signs neither this ID nor a time: whoever has seen a delivery can send it with another ID. With TLS, nobody
// sees it.
//
// TTL is 7 days: GitHub does not try again by itself, and lets people have deliveries sent again for 3 days, or 7 in older
// versions of Enterprise Server. MaxBody is 25 MiB, as GitHub's is 25 MB. See https://docs.github.com/en/webhooks.
func GitHub(secrets ...string) Sender {
	keys, fault := keysOf(secrets, asItIs)
	verify := func(h http.Header, body []byte) (string, error) {
		var signatures [][]byte
		if encoded, ok := strings.CutPrefix(h.Get("X-Hub-Signature-256"), "sha256="); ok {
			signatures = appendDecoded(signatures, hex.DecodeString, encoded)
		}
		return h.Get("X-GitHub-Delivery"), keys.check(signatures, "", body)
	}
	return Sender{Name: "github", Verify: verify, TTL: 7 * 24 * time.Hour, MaxBody: 25 << 20, fault: fault}
}

// Shopify is a sender of X-Shopify-Hmac-Sha256. The ID is X-Shopify-Webhook-Id, which names a delivery. X-Shopify-Event-Id
// does not: several deliveries, such as those of orders/create and orders/paid, have it in common if one action has caused
// them. So it is not the key, although an older page of Shopify, "Ignore duplicate webhooks", compares it. Secrets are client
// secrets of the app. Shopify signs neither ID nor time, see [GitHub].
//
// TTL is 24 hours: Shopify tries 8 times in 4 hours. See https://shopify.dev/docs/apps/build/webhooks/verify-deliveries and
// https://shopify.dev/docs/apps/build/webhooks/delivery-structure.
func Shopify(secrets ...string) Sender {
	keys, fault := keysOf(secrets, asItIs)
	verify := func(h http.Header, body []byte) (string, error) {
		signatures := appendDecoded(nil, base64.StdEncoding.DecodeString, h.Get("X-Shopify-Hmac-Sha256"))
		return h.Get("X-Shopify-Webhook-Id"), keys.check(signatures, "", body)
	}
	return Sender{Name: "shopify", Verify: verify, TTL: 24 * time.Hour, fault: fault}
}

// keys are the secrets that a sender may sign with.
type keys [][]byte

// keysOf returns the keys in secrets. The error names a secret by its place, because it ends up in logs.
func keysOf(secrets []string, decode func(string) ([]byte, error)) (all keys, fault error) {
	if len(secrets) == 0 {
		fault = errors.New("webhook: there is no secret: nothing would be accepted")
	}
	for i, secret := range secrets {
		key, err := decode(secret)
		if err == nil && len(key) == 0 {
			err = errors.New("it is empty")
		}
		if err != nil {
			fault = errors.Join(fault, fmt.Errorf("webhook: secret %d: %w", i+1, err))
		}
		all = append(all, key)
	}
	return all, fault
}

func asItIs(secret string) ([]byte, error) { return []byte(secret), nil }

// check returns an error unless one of the signatures is that of prefix and body with one of the keys.
func (k keys) check(signatures [][]byte, prefix string, body []byte) error {
	for _, key := range k {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(prefix))
		mac.Write(body)
		want := mac.Sum(nil)
		for _, signature := range signatures {
			if hmac.Equal(signature, want) {
				return nil
			}
		}
	}
	return fmt.Errorf("none of %d signatures is right", len(signatures))
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

// recent returns an error unless a time in seconds since 1970 is within the tolerance of now.
func recent(timestamp string) error {
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return fmt.Errorf("timestamp: %w", err)
	}
	if age := time.Since(time.Unix(seconds, 0)); age.Abs() > tolerance {
		return fmt.Errorf("timestamp: %v away from now", age)
	}
	return nil
}
