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
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
)

// algorithms are those of RFC 9530, section 5, that protect against an attacker.
var algorithms = []struct {
	name string
	new  func() hash.Hash
}{{"sha-256", sha256.New}, {"sha-512", sha512.New}}

// digests are what a Content-Digest says of a body.
type digests struct {
	sums [2][]byte // by algorithm; nil: there is none
	err  error     // the field cannot be read
}

func (d digests) none() bool { return d.err == nil && d.sums[0] == nil && d.sums[1] == nil }

// isMember matches a member of a dictionary whose value is a sequence of bytes (RFC 9651, sections 4.2.2 and 4.2.7).
var isMember = regexp.MustCompile(`^([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/]*={0,2}):$`)

// parse reads a Content-Digest (RFC 9530, section 2). Other algorithms are left out, and of two digests by one algorithm the
// last counts.
func parse(lines []string) (d digests) {
	if len(lines) == 0 {
		return d
	}
	for member := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		match := isMember.FindStringSubmatch(strings.Trim(member, " \t"))
		if match == nil {
			return digests{err: errors.New("the Content-Digest is no dictionary of byte sequences")}
		}
		for i, a := range algorithms {
			if a.name != match[1] {
				continue
			}
			sum, err := base64.StdEncoding.DecodeString(match[2])
			if err != nil || len(sum) != a.new().Size() {
				return digests{err: fmt.Errorf("the Content-Digest has no %s of the right length", a.name)}
			}
			d.sums[i] = sum
		}
	}
	return d
}

// content returns what stands for the body in the fingerprint.
func (d digests) content() ([]byte, error) {
	content := []byte("idempotency/upload/1")
	for i, a := range algorithms {
		if d.sums[i] != nil {
			content = append(append(content, a.name...), d.sums[i]...)
		}
	}
	return content, d.err
}

// check is a digest, and what was read so far.
type check struct {
	hash.Hash
	want []byte
}

func (d digests) checks() (all []check) {
	for i, a := range algorithms {
		if d.sums[i] != nil {
			all = append(all, check{a.new(), d.sums[i]})
		}
	}
	return all
}

// body verifies what is read of it.
type body struct {
	sent    io.Reader
	checks  []check
	onFault func() // is called when the body turns out to be wrong

	reading sync.Mutex
	ended   atomic.Pointer[error] // nil: it has not
}

var errDiffers = errors.New("it differs from its Content-Digest")

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if err := b.end(); err != nil {
		return 0, err
	}
	n, err := b.sent.Read(p)
	for _, c := range b.checks {
		c.Write(p[:n])
	}
	if err == io.EOF && !b.isRight() {
		err = errDiffers
	}
	if err != nil {
		b.ended.Store(&err)
		if err != io.EOF {
			b.onFault()
		}
	}
	return n, err
}

func (b *body) isRight() bool {
	for _, c := range b.checks {
		if !bytes.Equal(c.Sum(nil), c.want) {
			return false
		}
	}
	return true
}

// end returns io.EOF if the whole body was read, and was right; nil if there is more of it; else what is wrong with it.
func (b *body) end() error {
	if err := b.ended.Load(); err != nil {
		return *err
	}
	return nil
}

// Close does nothing: what a handler leaves is still verified. The server closes what it was sent.
func (*body) Close() error { return nil }
