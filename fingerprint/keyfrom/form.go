package keyfrom

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
)

// Form returns the field name of HTML forms as a Source: bodies of the media types application/x-www-form-urlencoded and
// multipart/form-data. An empty field is an invalid key.
//
// A form with files is read as by [fingerprint.Multipart], and other forms as by [url.ParseQuery]. Their errors refuse the
// request with body-invalid, and so does a part of a form with files whose Content-Disposition is malformed. By default,
// forms are compared by [fingerprint.Multipart] and [fingerprint.FormWithout], without the field name. So a browser may
// choose a new boundary when it sends a form again.
func Form(name string) Source {
	compareRest, err := fingerprint.FormWithout(name)
	return Source{places{inBody: []bodySource{formSource{name, compareRest}}}, errors.Join(checkName("Form", name), err)}
}

type formSource struct {
	fieldName   string
	compareRest idempotency.FingerprintFunc // for forms without files
}

const (
	urlEncoded = "application/x-www-form-urlencoded"
	withFiles  = "multipart/form-data"
)

func (s formSource) String() string   { return fmt.Sprintf("the form field %q", s.fieldName) }
func (s formSource) readsCoded() bool { return false }

func (s formSource) mayHaveKey(r *http.Request) bool {
	media := mediaType(r)
	return media == urlEncoded || media == withFiles
}

func (s formSource) findKey(r *http.Request, body []byte) (key string, found bool, err error) {
	var values url.Values
	if mediaType(r) == urlEncoded {
		values, err = url.ParseQuery(string(body))
	} else if len(body) > 0 {
		values, _, err = s.findParts(r, body)
	}
	if err != nil && !errors.Is(err, idempotency.ErrKeyInvalid) {
		err = fmt.Errorf("%w: body as form: %w", idempotency.ErrBodyInvalid, err)
	}
	if err != nil {
		return "", false, err
	}
	return pickValue(values, s.fieldName, s)
}

func (s formSource) leaveOut(compare idempotency.FingerprintFunc) idempotency.FingerprintFunc {
	return func(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
		switch media := mediaType(r); {
		case media == urlEncoded:
			return s.compareRest(r, body)
		case media == withFiles && !isCoded(r) && len(body) > 0:
			_, rest, err := s.findParts(r, body)
			if err != nil {
				return idempotency.Fingerprint{}, err
			}
			return fingerprint.Multipart(r, rest)
		}
		return compare(r, body)
	}
}

// findParts returns the values of the field in a form with files, under the name that the client has sent, and the form
// without the parts of the field.
func (s formSource) findParts(r *http.Request, body []byte) (values url.Values, rest []byte, err error) {
	if _, err := fingerprint.Multipart(r, body); err != nil { // the boundary is nowhere but between the parts
		return nil, nil, err
	}
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, nil, err
	}
	delimiter := []byte("--" + params["boundary"])
	pieces := bytes.Split(body, delimiter) // the text before the first part, the parts, and the text after the last part
	kept := pieces[:1:1]
	values = url.Values{}
	parts := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for _, piece := range pieces[1 : len(pieces)-1] {
		part, err := parts.NextRawPart()
		if err != nil {
			return nil, nil, err
		}
		name, err := s.nameOf(part.Header)
		if err != nil {
			return nil, nil, err
		}
		if !strings.EqualFold(name, s.fieldName) {
			kept = append(kept, piece)
			continue
		}
		value, err := io.ReadAll(part)
		if err != nil {
			return nil, nil, err
		}
		values.Add(name, string(value))
	}
	kept = append(kept, pieces[len(pieces)-1])
	return values, bytes.Join(kept, delimiter), nil
}

// nameOf returns the name of the field in a part of a form. Only a part that all parsers read in the same way may have the
// key: neither a file nor a part with an encoding of its own, which RFC 7578, section 4.7, deprecates.
func (s formSource) nameOf(part textproto.MIMEHeader) (string, error) {
	dispositions := part["Content-Disposition"]
	if len(dispositions) != 1 {
		return "", fmt.Errorf("a part has %d fields Content-Disposition", len(dispositions))
	}
	kind, params, err := mime.ParseMediaType(dispositions[0])
	if err != nil || kind != "form-data" {
		return "", fmt.Errorf("a part has the malformed Content-Disposition %.80q", dispositions[0])
	}
	name := params["name"]
	if !strings.EqualFold(name, s.fieldName) {
		return name, nil
	}
	_, isFile := params["filename"]
	isEncoded := slices.ContainsFunc(part["Content-Transfer-Encoding"], func(encoding string) bool {
		return !slices.Contains([]string{"7bit", "8bit", "binary"}, strings.ToLower(encoding))
	})
	if isFile || isEncoded {
		return "", newKeyFault("%s is a file, or has an encoding of its own", s)
	}
	return name, nil
}
