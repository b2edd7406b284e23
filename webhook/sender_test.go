package webhook_test

import (
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/webhook"
)

// vector is a delivery as a sender signs it.
type vector struct {
	sender func(secrets ...string) webhook.Sender
	secret string
	field  string // that has the signature
	header map[string]string
	body   string
	signed int64 // when, in seconds since 1970, if that is signed
	id     string
}

// Where a sender has published a delivery with its secret, it is that one.
var vectors = map[string]vector{
	// TestWebhookSign of github.com/standard-webhooks/standard-webhooks/libraries/go
	"Standard Webhooks": {
		sender: webhook.Standard, secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", field: "webhook-signature",
		header: map[string]string{"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330",
			"webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
		body: `{"test": 2432232314}`, signed: 1614265330, id: "msg_p5jXN8AQM9LWM0D4loKWxJek",
	},
	// secret and event are those of the tests of stripe-go, and its GenerateTestSignedPayload has signed them
	"Stripe": {
		sender: webhook.Stripe, secret: "whsec_test_secret", field: "Stripe-Signature",
		header: map[string]string{
			"Stripe-Signature": "t=1495999758,v1=bd9584a798a9bd54c579fb7780e70d915eb8f35bcacc651f9a06a3cce74be871"},
		body: `{"id":"evt_test_webhook","object":"event"}`, signed: 1495999758, id: "evt_test_webhook",
	},
	// docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
	"GitHub": {
		sender: webhook.GitHub, secret: "It's a Secret to Everybody", field: "X-Hub-Signature-256",
		header: map[string]string{"X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
			"X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
		body: "Hello, World!", id: "72d3162e-cc78-11e3-81ab-4c9367dc0958",
	},
	// Shopify has published none: openssl dgst -sha256 -hmac hush -binary | base64
	"Shopify": {
		sender: webhook.Shopify, secret: "hush", field: "X-Shopify-Hmac-Sha256",
		header: map[string]string{"X-Shopify-Webhook-Id": "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
			"X-Shopify-Event-Id":    "98880550-7158-44d4-b7cd-2c97c8a091b5",
			"X-Shopify-Hmac-Sha256": "D0UMXmhjwBRi4y66TmhJrDlhQABD7zI2fm3p6/QLMo8="},
		body: `{"id":820982911946154508,"email":"jon@example.com"}`, id: "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
	},
}

// with returns the header of the delivery, in which some fields are others. An empty one is left out.
func (v vector) with(fields map[string]string) http.Header {
	h := http.Header{}
	all := maps.Clone(v.header)
	maps.Copy(all, fields)
	for name, value := range all {
		if value != "" {
			h.Set(name, value)
		}
	}
	return h
}

func TestVectors(t *testing.T) {
	t.Parallel()
	for name, v := range vectors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				goTo(v.signed)
				for _, secrets := range [][]string{{v.secret}, {v.secret, other}, {other, v.secret}} { // while it changes
					id, err := v.sender(secrets...).Verify(v.with(nil), []byte(v.body))
					require.NoError(t, err)
					require.Equal(t, v.id, id)
				}
				accepted := func(h http.Header, body string, secrets ...string) bool {
					_, err := v.sender(secrets...).Verify(h, []byte(body))
					return err == nil
				}
				signature := v.header[v.field]
				for _, value := range []string{
					"", signature[:len(signature)-4], changed(signature), "v0" + signature, signature[2:],
					strings.NewReplacer("v1", "v0", "sha256", "sha1", "D", "d").Replace(signature),
				} {
					require.False(t, accepted(v.with(map[string]string{v.field: value}), v.body, v.secret), value)
				}
				require.False(t, accepted(v.with(nil), v.body+" ", v.secret), "another body")
				require.False(t, accepted(v.with(nil), v.body, other), "another secret")
			})
		})
	}
}

// other is a secret that any sender may have.
const other = "whsec_b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90aGVy"

func changed(signature string) string {
	last := len(signature) - 5
	digit := byte('0')
	if signature[last] == digit {
		digit = '1'
	}
	return signature[:last] + string(digit) + signature[last+1:]
}

// goTo moves the clock of the test to a time, in seconds since 1970.
func goTo(seconds int64) {
	if seconds != 0 {
		time.Sleep(time.Until(time.Unix(seconds, 0)))
	}
}

// Senders that sign a time sign it anew with each attempt.
func TestTolerance(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Standard Webhooks", "Stripe"} {
		v := vectors[name]
		for seconds, want := range map[int64]bool{-301: false, -300: true, 300: true, 301: false} {
			synctest.Test(t, func(t *testing.T) {
				goTo(v.signed + seconds)
				_, err := v.sender(v.secret).Verify(v.with(nil), []byte(v.body))
				require.Equal(t, want, err == nil, "%s, %d s later: %v", name, seconds, err)
			})
		}
	}
}

// A time that the sender has not signed, or that is none, does not help.
func TestTimestampIsSigned(t *testing.T) {
	t.Parallel()
	standard, stripe := vectors["Standard Webhooks"], vectors["Stripe"]
	now := strconv.FormatInt(time.Now().Unix(), 10)
	for _, timestamp := range []string{now, "", "-1", "99999999999999999999", "9223372036854775807", "x"} {
		_, err := standard.sender(standard.secret).Verify(
			standard.with(map[string]string{"webhook-timestamp": timestamp}), []byte(standard.body))
		require.Error(t, err, timestamp)
		_, err = stripe.sender(stripe.secret).Verify(stripe.with(map[string]string{
			"Stripe-Signature": strings.Replace(stripe.header["Stripe-Signature"], "1495999758", timestamp, 1)}), []byte(stripe.body))
		require.Error(t, err, timestamp)
	}
}

// Standard Webhooks signs the ID. A delivery that somebody has seen cannot be sent with another one.
func TestStandardSignsTheID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := vectors["Standard Webhooks"]
		goTo(v.signed)
		_, err := v.sender(v.secret).Verify(v.with(map[string]string{"webhook-id": "msg_2"}), []byte(v.body))
		require.Error(t, err)
	})
}

// While a secret changes, a sender signs with both. It may also add signatures of other kinds.
func TestSeveralSignatures(t *testing.T) {
	t.Parallel()
	for name, around := range map[string][2]string{
		"Standard Webhooks": {"v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg== v1,??? " +
			"v1,b3RoZXI= ", " v2"},
		"Stripe": {"v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39,v1=zz,v1=00,", ",,v2"},
	} {
		v := vectors[name]
		synctest.Test(t, func(t *testing.T) {
			goTo(v.signed)
			signatures := around[0] + v.header[v.field] + around[1]
			id, err := v.sender(v.secret).Verify(v.with(map[string]string{v.field: signatures}), []byte(v.body))
			require.NoError(t, err, name)
			require.Equal(t, v.id, id, name)
		})
	}
}

// Whatever arrives, it neither causes a panic, nor is accepted without a secret of the sender.
func FuzzVerify(f *testing.F) {
	for _, v := range vectors {
		f.Add(v.header[v.field], strconv.FormatInt(v.signed, 10), v.id, v.body)
	}
	f.Add("t=,v1=,=,t", "", "", `{"id":1,"id":{"id":[]}}`)
	f.Add("v1, v1 , v1,=", "0x1", "\x00", `{"ID":"a","id":"b"`)
	f.Add("sha256=sha256=", "-9223372036854775808", "a.b", "\xff")
	f.Fuzz(func(t *testing.T, signature, timestamp, id, body string) {
		for name, v := range vectors {
			h := v.with(map[string]string{v.field: signature, "webhook-timestamp": timestamp, "webhook-id": id})
			_, _ = v.sender(v.secret).Verify(h, []byte(body))
			_, err := v.sender(other).Verify(h, []byte(body))
			require.Error(t, err, name)
		}
	})
}
