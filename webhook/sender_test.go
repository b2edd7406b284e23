package webhook_test

import (
	"encoding/base64"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/webhook"
)

// vector is a delivery with a signature of its sender.
type vector struct {
	sender func(secrets ...string) webhook.Sender
	secret string
	field  string // that has the signature
	header map[string]string
	body   string
	signed int64 // when, in seconds since 1970, if that is signed
	id     string
}

func standard(secrets ...string) webhook.Sender { return webhook.Standard("acme", secrets...) }

// vectors are deliveries that the senders have published with their secrets, as far as there are any.
var vectors = map[string]vector{
	// TestWebhookSign of github.com/standard-webhooks/standard-webhooks/libraries/go
	"Standard Webhooks": {
		sender: standard, secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", field: "webhook-signature",
		header: map[string]string{"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330",
			"webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
		body: `{"test": 2432232314}`, signed: 1614265330, id: "msg_p5jXN8AQM9LWM0D4loKWxJek",
	},
	// The signature is the example in the specification of Standard Webhooks, section "Webhook headers". Svix publishes its
	// keys, ID, time and body: test_asymmetric_key_signing of github.com/svix/svix-webhooks.
	"Standard Webhooks v1a": {
		sender: standard, secret: "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=", field: "webhook-signature",
		header: map[string]string{"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330",
			"webhook-signature": "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="},
		body: `{"test": 2432232314}`, signed: 1614265330, id: "msg_p5jXN8AQM9LWM0D4loKWxJek",
	},
	// the same delivery with the names of Svix: server/svix-server/src/worker.rs of github.com/svix/svix-webhooks
	"Svix": {
		sender: standard, secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", field: "svix-signature",
		header: map[string]string{"svix-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "svix-timestamp": "1614265330",
			"svix-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
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
		sender: webhook.Shopify, secret: "hush", field: "Shopify-Hmac-Sha256",
		header: map[string]string{"Shopify-Webhook-Id": "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
			"Shopify-Event-Id":    "98880550-7158-44d4-b7cd-2c97c8a091b5",
			"Shopify-Hmac-Sha256": "D0UMXmhjwBRi4y66TmhJrDlhQABD7zI2fm3p6/QLMo8="},
		body: `{"id":820982911946154508,"email":"jon@example.com"}`, id: "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
	},
	"Shopify with X-": {
		sender: webhook.Shopify, secret: "hush", field: "X-Shopify-Hmac-Sha256",
		header: map[string]string{"X-Shopify-Webhook-Id": "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
			"X-Shopify-Event-Id":    "98880550-7158-44d4-b7cd-2c97c8a091b5",
			"X-Shopify-Hmac-Sha256": "D0UMXmhjwBRi4y66TmhJrDlhQABD7zI2fm3p6/QLMo8="},
		body: `{"id":820982911946154508,"email":"jon@example.com"}`, id: "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
	},
}

// with returns the header of the delivery with some fields replaced. An empty value removes a field.
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

// other is a valid secret of a different sender.
const other = "whsec_b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90aGVy"

func changed(signature string) string {
	last := len(signature) - 5
	digit := byte('0')
	if signature[last] == digit {
		digit = '1'
	}
	return signature[:last] + string(digit) + signature[last+1:]
}

// goTo moves the clock of the test to seconds since 1970.
func goTo(seconds int64) {
	if seconds != 0 {
		time.Sleep(time.Until(time.Unix(seconds, 0)))
	}
}

// Senders that sign a time sign it again with each attempt, so an old time is refused.
func TestTolerance(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Standard Webhooks", "Standard Webhooks v1a", "Svix", "Stripe"} {
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

// A time that the sender has not signed, or that is malformed, is refused.
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

// Standard Webhooks signs the ID, so an attacker cannot send a recorded delivery with a different ID.
func TestStandardSignsTheID(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Standard Webhooks", "Standard Webhooks v1a", "Svix"} {
		v := vectors[name]
		synctest.Test(t, func(t *testing.T) {
			goTo(v.signed)
			for _, field := range []string{"webhook-id", "svix-id"} { // the other names may stand beside those of the vector
				id, err := v.sender(v.secret).Verify(v.with(map[string]string{field: "msg_2"}), []byte(v.body))
				require.True(t, err != nil || id == v.id, "%s: %s is taken for the ID", name, field)
			}
		})
	}
}

// While a secret changes, a sender signs with both secrets. It may also add signatures of other kinds.
func TestSeveralSignatures(t *testing.T) {
	t.Parallel()
	for name, around := range map[string][2]string{
		"Standard Webhooks": {"v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg== v1,??? " +
			"v1,b3RoZXI= ", " v2"},
		"Standard Webhooks v1a": {"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= v1a,??? v1a,b3RoZXI= v1a, ", " v2"},
		"Stripe":                {"v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39,v1=zz,v1=00,", ",,v2"},
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

// Secrets and public keys work side by side while a sender changes its algorithm. Only a key of the same algorithm
// verifies a signature: the public key, which everybody knows, is no secret of an HMAC.
func TestKeysOfTwoAlgorithms(t *testing.T) {
	t.Parallel()
	symmetric, asymmetric := vectors["Standard Webhooks"], vectors["Standard Webhooks v1a"]
	raw := strings.TrimPrefix(asymmetric.secret, "whpk_")
	public, err := base64.StdEncoding.DecodeString(raw)
	require.NoError(t, err)
	hmacByPublicKey := base64.StdEncoding.EncodeToString(
		sign(string(public), asymmetric.id+".1614265330."+asymmetric.body))
	both := symmetric.header[symmetric.field] + " " + asymmetric.header[asymmetric.field]
	otherPublic := "whpk_" + base64.StdEncoding.EncodeToString(make([]byte, 32))
	for name, test := range map[string]struct {
		signatures string
		secrets    []string
		accepted   bool
	}{
		"a secret of two":             {symmetric.header[symmetric.field], []string{asymmetric.secret, symmetric.secret}, true},
		"a public key of two":         {asymmetric.header[asymmetric.field], []string{symmetric.secret, asymmetric.secret}, true},
		"the second public key":       {asymmetric.header[asymmetric.field], []string{otherPublic, asymmetric.secret}, true},
		"signed with both":            {both, []string{other, asymmetric.secret}, true},
		"signed with both, secret":    {both, []string{otherPublic, symmetric.secret}, true},
		"another public key":          {asymmetric.header[asymmetric.field], []string{otherPublic, symmetric.secret}, false},
		"another secret":              {symmetric.header[symmetric.field], []string{other, asymmetric.secret}, false},
		"HMAC by the public key":      {"v1," + hmacByPublicKey, []string{asymmetric.secret}, false},
		"the same, as v1a":            {"v1a," + hmacByPublicKey, []string{asymmetric.secret}, false},
		"Ed25519 as v1":               {strings.Replace(asymmetric.header[asymmetric.field], "v1a", "v1", 1), []string{asymmetric.secret}, false},
		"the public key, as a secret": {asymmetric.header[asymmetric.field], []string{raw}, false},
		"behind a few others":         {strings.Repeat("v1a,"+strings.Repeat("A", 86)+"== ", 7) + both, []string{asymmetric.secret}, true},
		"behind thousands of others":  {strings.Repeat("v1a,"+strings.Repeat("A", 86)+"== ", 9000) + both, []string{asymmetric.secret}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			goTo(symmetric.signed)
			h := symmetric.with(map[string]string{symmetric.field: test.signatures})
			_, err := standard(test.secrets...).Verify(h, []byte(symmetric.body))
			require.Equal(t, test.accepted, err == nil, "%s: %v", name, err)
		})
	}
}

// A malformed key is reported by its position.
func TestFaultsOfKeys(t *testing.T) {
	t.Parallel()
	for secret, fault := range map[string]string{
		"whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==": "private key",
		"whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOig==":                                             "31 bytes",
		"whpk_":  "0 bytes",
		"whpk_!": "base64",
		"whsec_": "empty",
		"":       "empty",
		"!":      "base64",
	} {
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
		_, err := webhook.New(store, standard(other, secret), idempotency.Options{})
		require.ErrorContains(t, err, "secret 2", secret)
		require.ErrorContains(t, err, fault, secret)
		require.NotContains(t, err.Error(), "6Xb/dCcHpPea", "a secret would be in the log")
	}
}

// Test events of the dashboard of Stripe share an ID, or an ID for each type of event. The body tells them apart.
func TestStripeTestEvents(t *testing.T) {
	t.Parallel()
	verify := func(body string) string {
		id, err := webhook.Stripe("secret").Verify(signed("Stripe", "secret", "", body), []byte(body))
		require.NoError(t, err)
		require.LessOrEqual(t, len(id), 255)
		return id
	}
	for _, id := range []string{"evt_00000000000000", "charge.expired_00000000000000", "account.external_account.created_00000000000000"} {
		first, second := `{"id":"`+id+`","type":"charge.succeeded"}`, `{"id":"`+id+`","type":"charge.refunded"}`
		require.NotEqual(t, verify(first), verify(second), "two test events")
		require.Equal(t, verify(first), verify(first), "one test event, delivered again")
		require.True(t, strings.HasPrefix(verify(first), id), "an operator finds it by its ID")
	}
	for _, id := range []string{"evt_1", "evt_100000", "evt_000001", "evt_", "evt_1NG8Du2eZvKYlo2CUI79vXWy", "evt_test_webhook"} {
		require.Equal(t, id, verify(`{"id":"`+id+`"}`))
	}
}

// Shopify sends both names of each field for a while. The new names count, as in the libraries of Shopify.
func TestShopifySendsBothNames(t *testing.T) {
	t.Parallel()
	v := vectors["Shopify"]
	id, err := v.sender(v.secret).Verify(v.with(map[string]string{
		"X-Shopify-Webhook-Id": "another", "X-Shopify-Hmac-Sha256": "b3RoZXI="}), []byte(v.body))
	require.NoError(t, err)
	require.Equal(t, v.id, id)
}

// No delivery makes Verify panic, and no delivery is accepted without a secret of the sender.
func FuzzVerify(f *testing.F) {
	for _, v := range vectors {
		f.Add(v.header[v.field], strconv.FormatInt(v.signed, 10), v.id, v.body)
	}
	f.Add("t=,v1=,=,t", "", "", `{"id":1,"id":{"id":[]}}`)
	f.Add("v1, v1 , v1,=", "0x1", "\x00", `{"ID":"a","id":"b"`)
	f.Add("sha256=sha256=", "-9223372036854775808", "a.b", "\xff")
	f.Fuzz(func(t *testing.T, signature, timestamp, id, body string) {
		for name, v := range vectors {
			h := v.with(map[string]string{v.field: signature, "webhook-timestamp": timestamp, "webhook-id": id,
				"svix-timestamp": timestamp, "svix-id": id})
			_, _ = v.sender(v.secret).Verify(h, []byte(body))
			_, err := v.sender(other).Verify(h, []byte(body))
			require.Error(t, err, name)
		}
	})
}
