package contract

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"net/http"
	"strings"
	"text/template"
	"time"

	"github.com/idempotency-go/idempotency"
)

//go:embed components.yaml.tmpl
var componentsText string

var componentsTemplate = template.Must(template.New("components").Parse(componentsText))

// keyParameter is a header parameter for the key.
type keyParameter struct {
	Component, Header string
	IsRequired        bool
}

// Components returns the components of an OpenAPI description as YAML: the parameter of the key, the marker of replays and
// the refusals, as a middleware with opts has them. Write them to a file that the description refers to, and compare the
// file in a test, so that the two cannot part. With KeyInfo.StatusURL, the component IdempotencyStatus describes the answer
// of Middleware.Status. With field names in KeyInfo, IdempotencyBegan and IdempotencyKeptUntil describe these fields.
//
// Refusals of other packages are missing: package upload adds two problem types of IANA about digests, and package keyfrom
// the status 415.
//
// With several Options.Headers there is a parameter for each of them, and none is required, because a client sends one.
func Components(opts idempotency.Options) ([]byte, error) {
	headers := opts.Headers
	if len(headers) == 0 {
		headers = []string{"Idempotency-Key"}
	}
	values := struct {
		Parameters           []keyParameter
		ProblemBase, KeptFor string
		ReuseStatus          int
		KeyInfo              idempotency.KeyInfo
	}{
		ProblemBase: cmp.Or(opts.ProblemBase, "https://idempotency-go.github.io/idempotency/problems#"),
		KeptFor:     describeTime(cmp.Or(opts.TTL, 24*time.Hour)),
		KeyInfo:     opts.KeyInfo,
	}
	if opts.ReuseStatus != http.StatusConflict {
		values.ReuseStatus = opts.ReuseStatus
	}
	for i, header := range headers {
		component := "IdempotencyKey"
		if i > 0 {
			component = strings.ReplaceAll(http.CanonicalHeaderKey(header), "-", "")
		}
		values.Parameters = append(values.Parameters, keyParameter{component, header, opts.Required && len(headers) == 1})
	}
	var text bytes.Buffer
	if err := componentsTemplate.Execute(&text, values); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// describeTime returns d in hours or days if that is exact.
func describeTime(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d > day && d%day == 0:
		return fmt.Sprintf("%d days", d/day)
	case d > time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%d hours", d/time.Hour)
	}
	return d.String()
}
