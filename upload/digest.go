package upload

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/idempotency-go/idempotency"
)

// digestAlgorithms are the algorithms of RFC 9530, section 5, that are secure against attackers.
var digestAlgorithms = []struct {
	name string
	new  func() hash.Hash
}{{"sha-256", sha256.New}, {"sha-512", sha512.New}}

// The problem types that IANA registers for digests, by draft-ietf-httpapi-digest-fields-problem-types-06, which is with the
// RFC Editor.
const (
	typeInvalidDigest     = "https://iana.org/assignments/http-problem-types#digest-invalid-values"
	typeMismatchingDigest = "https://iana.org/assignments/http-problem-types#digest-mismatching-values"
)

// digests are the digests in the field Content-Digest of a request.
type digests struct {
	sumByAlgorithm [2][]byte // in the order of digestAlgorithms; nil without a digest
	parseErr       error     // the field is malformed
}

// areEmpty reports whether the request lacks a digest of a supported algorithm.
func (d digests) areEmpty() bool {
	return d.parseErr == nil && d.sumByAlgorithm[0] == nil && d.sumByAlgorithm[1] == nil
}

// memberPattern matches a member of a dictionary whose value is a byte sequence (RFC 9651, sections 4.2.2 and 4.2.7).
var memberPattern = regexp.MustCompile(`^([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/]*={0,2}):$`)

// parseDigests parses the lines of a Content-Digest (RFC 9530, section 2). Other algorithms are ignored. If an algorithm
// occurs twice, the last digest counts.
func parseDigests(lines []string) (d digests) {
	if len(lines) == 0 {
		return d
	}
	for member := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		match := memberPattern.FindStringSubmatch(strings.Trim(member, " \t"))
		if match == nil {
			return digests{parseErr: errors.New("the Content-Digest is no dictionary of byte sequences")}
		}
		for i, a := range digestAlgorithms {
			if a.name != match[1] {
				continue
			}
			sum, err := base64.StdEncoding.DecodeString(match[2])
			if err != nil {
				return digests{parseErr: fmt.Errorf("the Content-Digest has a malformed %s: %w", a.name, err)}
			}
			if len(sum) != a.new().Size() {
				return digests{parseErr: &idempotency.Error{
					Status: http.StatusBadRequest, Code: "body-invalid", Type: typeInvalidDigest, Title: "Invalid digest values",
					Detail: "The " + a.name + " in Content-Digest is too long or too short. Send the request with the right digest.",
					Retry:  idempotency.RetryNewKey,
				}}
			}
			d.sumByAlgorithm[i] = sum
		}
	}
	return d
}

// fingerprintContent returns the content of which the fingerprint is made in place of the body.
func (d digests) fingerprintContent() ([]byte, error) {
	content := []byte("idempotency/upload/1")
	for i, a := range digestAlgorithms {
		if d.sumByAlgorithm[i] != nil {
			content = append(append(content, a.name...), d.sumByAlgorithm[i]...)
		}
	}
	return content, d.parseErr
}

// digestCheck compares the hash of the bytes that were read with the digest of the client.
type digestCheck struct {
	hash.Hash
	wantSum []byte
}

// newChecks returns a digestCheck for each digest.
func (d digests) newChecks() (all []digestCheck) {
	for i, a := range digestAlgorithms {
		if d.sumByAlgorithm[i] != nil {
			all = append(all, digestCheck{a.new(), d.sumByAlgorithm[i]})
		}
	}
	return all
}

// verifiedBody is a request body that is verified against its digests while it is read.
type verifiedBody struct {
	source       io.Reader
	digestChecks []digestCheck
	onFault      func() // called when the body turns out to be wrong or incomplete

	readLock sync.Mutex
	endError atomic.Pointer[error] // unset until the end
}

var errDiffers = errors.New("the body differs from its Content-Digest")

// Read implements [io.Reader]. At the end of a body that differs from a digest, Read returns errDiffers in place of io.EOF.
func (b *verifiedBody) Read(p []byte) (int, error) {
	b.readLock.Lock()
	defer b.readLock.Unlock()
	if err := b.readEnd(); err != nil {
		return 0, err
	}
	n, err := b.source.Read(p)
	for _, c := range b.digestChecks {
		c.Write(p[:n])
	}
	if err == io.EOF && !b.matchesDigests() {
		err = errDiffers
	}
	if err != nil {
		b.endError.Store(&err)
		if err != io.EOF {
			b.onFault()
		}
	}
	return n, err
}

// matchesDigests reports whether the bytes that were read match all digests.
func (b *verifiedBody) matchesDigests() bool {
	for _, c := range b.digestChecks {
		if !bytes.Equal(c.Sum(nil), c.wantSum) {
			return false
		}
	}
	return true
}

// readEnd returns how the body has ended: io.EOF after the whole verified body, nil while there is more to read, or the
// error that has ended the body.
func (b *verifiedBody) readEnd() error {
	if err := b.endError.Load(); err != nil {
		return *err
	}
	return nil
}

// Close does nothing, because the middleware verifies the rest of the body after the handler. The server closes the
// original body.
func (*verifiedBody) Close() error { return nil }
