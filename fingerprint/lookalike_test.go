package fingerprint_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

func partsOfNothingElse(names ...string) (idempotency.FingerprintFunc, error) {
	p, err := fingerprint.NewParts(fingerprint.None, names...)
	if err != nil {
		return nil, err
	}
	return p.Fingerprint, nil
}

// Encoding/json reads "Amount" into the field of "amount", and decoders of forms such as that of echo do the same. So a body
// that has another spelling of a selected name is refused, because the function cannot tell what the handler reads.
func TestOtherSpellingsOfSelectedNames(t *testing.T) {
	t.Parallel()
	type row struct {
		name, names, body string
		refused           string // the name that the error tells; empty: the body is accepted
	}
	ofJSON := []row{
		{"both spellings", "/amount", `{"amount":100,"Amount":1}`, "Amount"},
		{"both, the other way round", "/amount", `{"Amount":1,"amount":100}`, "Amount"},
		{"only the other one", "/amount", `{"Amount":1}`, "Amount"},
		{"escaped", "/amount", `{"\u0041mount":1}`, "Amount"},
		{"a letter of another alphabet that folds", "/key", `{"\u212aey":1}`, "\u212aey"},
		{"another letter that folds", "/sum", `{"ſum":1}`, "ſum"},
		{"on the way", "/to/name", `{"to":{"name":1},"TO":{"name":2}}`, "TO"},
		{"in an object within", "/to/name", `{"to":{"name":1,"Name":2}}`, "Name"},
		{"in an element", "/items/*/sku", `{"items":[{"sku":1},{"SKU":2}]}`, "SKU"},
		{"in one element", "/items/1/sku", `{"items":[{"SKU":1},{"Sku":2}]}`, "Sku"},
		{"in an element beside", "/items/1/sku", `{"items":[{"SKU":1},{"sku":2}]}`, ""},
		{"by a star and by an index", "/*/a /0/b", `[{"a":1,"B":1}]`, "B"},
		{"both are selected", "/amount /Amount", `{"amount":100,"Amount":1}`, ""},
		{"a third one", "/amount /Amount", `{"amount":100,"AMOUNT":1}`, "AMOUNT"},
		{"elsewhere", "/amount", `{"amount":100,"note":1,"Note":2,"to":{"Amount":1}}`, ""},
		{"within what is selected", "/to", `{"to":{"a":1,"A":2}}`, ""},
		{"a longer name", "/amount", `{"amount":100,"Amounts":1,"amount_":1}`, ""},
		{"no object", "/amount", `["Amount"]`, ""},
	}
	ofForms := []row{
		{"both spellings", "amount", `amount=100&Amount=1`, "Amount"},
		{"only the other one", "amount", `Amount=1`, "Amount"},
		{"encoded", "amount", `%41mount=1`, "Amount"},
		{"both are selected", "amount Amount", `amount=100&Amount=1`, ""},
		{"elsewhere", "amount", `amount=100&note=1&Note=2`, ""},
	}
	check := func(name string, of constructor, media string, row row) {
		f := fingerprint.Must(of(strings.Fields(row.names)...))
		_, err := content{"", media, row.body}.fingerprint(f)
		if row.refused == "" {
			require.NoError(t, err, "%s: %s", name, row.name)
			return
		}
		require.ErrorContains(t, err, `"`+row.refused+`"`, "%s: %s", name, row.name)
	}
	for name, of := range map[string]constructor{
		"JSONOnly": fingerprint.JSONOnly, "JSONWithout": fingerprint.JSONWithout, "NewParts": partsOfNothingElse,
	} {
		for _, row := range ofJSON {
			check(name, of, js, row)
		}
	}
	for name, of := range map[string]constructor{
		"FormOnly": fingerprint.FormOnly, "FormWithout": fingerprint.FormWithout, "NewParts": partsOfNothingElse,
	} {
		for _, row := range ofForms {
			check(name, of, urlEncoded, row)
		}
	}
}

// A client cannot have its second payment taken for a replay of the first one.
func TestOtherSpellingOverHTTP(t *testing.T) {
	t.Parallel()
	opts := idempotency.Options{Fingerprint: fingerprint.Must(fingerprint.JSONOnly("/amount"))}
	svc := testservice.Setup{Opts: opts}.Serve(t, testservice.Echo)
	own := testservice.WithHeader("Content-Type", js)
	require.Equal(t, http.StatusCreated, svc.Post("1", `{"amount":100}`, own).Status)
	for _, body := range []string{`{"amount":100,"Amount":500000}`, `{"Amount":500000}`} {
		testservice.RequireProblem(t, svc.Post("1", body, own), http.StatusBadRequest, "body-invalid")
	}
	require.EqualValues(t, 1, svc.Runs.Load())
}

// Two names that differ in case only are one field to encoding/json, which takes the value of the last one. So their order
// counts, where none of them is selected.
func TestOrderOfSpellingsCounts(t *testing.T) {
	t.Parallel()
	const first, second = `{"to":[{"amount":1,"AMOUNT":2}]}`, `{"to":[{"AMOUNT":2,"amount":1}]}`
	type order struct{ To []struct{ Amount int } }
	var a, b order
	require.NoError(t, json.Unmarshal([]byte(first), &a))
	require.NoError(t, json.Unmarshal([]byte(second), &b))
	require.NotEqual(t, a, b, "what encoding/json reads")
	for name, f := range map[string]idempotency.FingerprintFunc{
		"JSON":        fingerprint.JSON,
		"JSONOnly":    fingerprint.Must(fingerprint.JSONOnly("/to")),
		"JSONWithout": fingerprint.Must(fingerprint.JSONWithout("/note")),
		"NewParts":    fingerprint.Must(partsOfNothingElse("/to")),
	} {
		require.False(t, sameBy(t, f, first, second), name)
	}
}
