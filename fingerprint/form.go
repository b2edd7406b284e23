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

// FormOnly returns a function that compares only the fields of these names in an URL-encoded form. Their decoded values
// count, with their number and order, and a field that is missing is not empty. A form that changes elsewhere is the same
// request: the handler must not use what is not compared.
//
// Query and media type count. Bodies of other media types count whole, as with [idempotency.FingerprintRaw]: so do forms
// with files. The function returns an error for a form that [url.ParseQuery] does not read, and for a form with a name that
// differs from one of names in case only, because some decoders read both into one value. Name both spellings to compare both.
//
// The error reports names that are given twice, or no name at all. Requests that were stored under other names are refused
// as reused.
func FormOnly(names ...string) (idempotency.FingerprintFunc, error) {
	return formBy("form-only", names, func(form url.Values, names []string) url.Values {
		only := url.Values{}
		for _, name := range names {
			only[name] = form[name]
		}
		return only
	})
}

// FormWithout returns a function that compares an URL-encoded form without the fields of these names. All else is as with
// [FormOnly].
func FormWithout(names ...string) (idempotency.FingerprintFunc, error) {
	return formBy("form-without", names, func(form url.Values, names []string) url.Values {
		for _, name := range names {
			delete(form, name)
		}
		return form
	})
}

const urlEncoded = "application/x-www-form-urlencoded"

// formBy returns a function that compares what is selected of a form.
func formBy(kind string, names []string, selected func(form url.Values, names []string) url.Values) (idempotency.FingerprintFunc, error) {
	names = slices.Clone(names)
	if err := checkNames(names); err != nil {
		return nil, err
	}
	prefix := slices.Clip(appendNames(kind, names)) // so that nobody appends to it in place
	return func(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
		media := readableType(r)
		if media != urlEncoded {
			return idempotency.FingerprintRaw(r, body)
		}
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return idempotency.Fingerprint{}, fmt.Errorf("body as form: %w", err)
		}
		if err := checkSpelling(form, names); err != nil {
			return idempotency.Fingerprint{}, err
		}
		form = selected(form, names)
		b := prefix
		for _, name := range slices.Sorted(maps.Keys(form)) {
			b = appendPart(b, name)
			b = appendValues(b, form[name])
		}
		return as(r, media, b)
	}, nil
}

// checkSpelling returns an error if a field of a form has the name of a selected one in other letters, upper or lower case,
// unless that name is selected, too: some decoders, such as the one of echo, take both names for one.
func checkSpelling(form url.Values, names []string) error {
	for name := range form {
		for _, selected := range names {
			if strings.EqualFold(name, selected) && !slices.Contains(names, name) {
				return fmt.Errorf("body as form: name %q differs from %q in case only", name, selected)
			}
		}
	}
	return nil
}

// appendValues appends the values of a field, and how many they are.
func appendValues(b []byte, values []string) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(values)))
	for _, value := range values {
		b = appendPart(b, value)
	}
	return b
}

func checkNames(names []string) error {
	if len(names) == 0 {
		return errors.New("fingerprint: no name of a field")
	}
	var faults []error
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			faults = append(faults, fmt.Errorf("fingerprint: field %q is named twice", name))
		}
	}
	return errors.Join(faults...)
}
