package fingerprint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// FormOnly returns a function that compares only the named fields of an URL-encoded form. The function compares the decoded
// values of each field with their number and order. A missing field differs from an empty field. Two forms that differ only in
// other fields are the same request, so the handler must use the named fields only.
//
// The function also compares the query and the media type. Bodies of other media types, including forms with files, are
// compared as by [idempotency.FingerprintRaw]. The function returns an error for
//
//   - a form that [url.ParseQuery] cannot parse;
//   - a form with a field whose name differs from one of names in case only, because some decoders read both fields into one
//     value. Give both spellings to compare both.
//
// FormOnly itself returns an error for a name that is given twice, and if names is empty. After a change of names, retries of
// earlier requests are refused as reused.
func FormOnly(names ...string) (idempotency.FingerprintFunc, error) {
	return newFormFunc("form-only", names, func(form url.Values, names []string) url.Values {
		only := url.Values{}
		for _, name := range names {
			only[name] = form[name]
		}
		return only
	})
}

// FormWithout returns a function that compares all fields of an URL-encoded form except the named fields. Other media types and
// errors are as with [FormOnly].
func FormWithout(names ...string) (idempotency.FingerprintFunc, error) {
	return newFormFunc("form-without", names, func(form url.Values, names []string) url.Values {
		for _, name := range names {
			delete(form, name)
		}
		return form
	})
}

const urlEncoded = "application/x-www-form-urlencoded"

// newFormFunc returns a function that compares the fields of a form that selectFields returns. The fingerprint covers mode and
// names as well, so a change of either changes all fingerprints.
func newFormFunc(
	mode string, names []string, selectFields func(form url.Values, names []string) url.Values,
) (idempotency.FingerprintFunc, error) {
	names = slices.Clone(names)
	if err := checkNames(names); err != nil {
		return nil, err
	}
	prefix := slices.Clip(appendNames(mode, names)) // so that each append copies the prefix
	return func(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
		media := contentMediaType(r)
		if media != urlEncoded {
			return idempotency.FingerprintRaw(r, body)
		}
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return idempotency.Fingerprint{}, fmt.Errorf("body as form: %w", err)
		}
		if err := checkFieldNames(form, names); err != nil {
			return idempotency.Fingerprint{}, err
		}
		form = selectFields(form, names)
		b := prefix
		for _, name := range slices.Sorted(maps.Keys(form)) {
			b = appendPart(b, name)
			b = appendValues(b, form[name])
		}
		return fingerprintAs(r, media, b)
	}, nil
}

// checkFieldNames returns an error if form has a field that differs from one of names in case only, unless names has both
// spellings. Some decoders, such as the decoder of echo, read both fields into one value.
func checkFieldNames(form url.Values, names []string) error {
	for name := range form {
		for _, selected := range names {
			if strings.EqualFold(name, selected) && !slices.Contains(names, name) {
				return fmt.Errorf("body as form: name %q differs from %q in case only", name, selected)
			}
		}
	}
	return nil
}

// appendValues appends the number of values and all values to b.
func appendValues(b []byte, values []string) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(values)))
	for _, value := range values {
		b = appendPart(b, value)
	}
	return b
}

func checkNames(names []string) error {
	if len(names) == 0 {
		return errors.New("fingerprint: names are missing: give at least one field")
	}
	var faults []error
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			faults = append(faults, fmt.Errorf("fingerprint: field %q is named twice", name))
		}
	}
	return errors.Join(faults...)
}
