package idempotency_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// fixedStore has one record for every key.
type fixedStore struct{ record idempotency.Record }

func (s fixedStore) Begin(
	context.Context, idempotency.Key, idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return s.record, nil, nil
}

// sealedSeed returns a record whose answer is sealed.
func sealedSeed(f testing.TB, resp idempotency.Response) idempotency.Record {
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	testservice.MustComplete(f, testservice.MustSeal(f, inner, testservice.Sealing("1")), testservice.NumberedKey(1), resp)
	record, _, err := inner.Begin(f.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	require.NoError(f, err)
	return record
}

// FuzzSealedAnswer forges the answer of a record. Whatever it is, it is refused, unless it was sealed for this very record: by
// another process that fuzzes, say.
func FuzzSealedAnswer(f *testing.F) {
	genuine := sealedSeed(f, testservice.BodyOf(20))
	mark, body := string(genuine.Response.Header), genuine.Response.Body
	for _, seed := range []string{"", ":sealed/1 ", ":sealed/1 1\n", ":sealed/1 2\n", "A: b\n", mark + "A: b\n", ": b\n" + mark} {
		f.Add(seed, body, genuine.Response.Status, genuine.Attempt)
	}
	f.Add(mark, []byte(""), genuine.Response.Status, genuine.Attempt)
	f.Add(mark, body[:len(body)-1], genuine.Response.Status, genuine.Attempt)
	f.Add(mark, body, http.StatusOK, genuine.Attempt)
	f.Add(mark, body, genuine.Response.Status, genuine.Attempt+1)
	f.Fuzz(func(t *testing.T, header string, forged []byte, status, attempt int) {
		record := genuine
		record.Attempt = attempt
		record.Response = &idempotency.Response{Status: status, Header: idempotency.Fields(header), Body: forged}
		got, _, err := testservice.MustSeal(t, fixedStore{record}, testservice.Sealing("1", "2")).Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
		if header == mark && status == genuine.Response.Status && attempt == genuine.Attempt && (err == nil || bytes.Equal(forged, body)) {
			require.NoError(t, err)
			require.Equal(t, testservice.BodyOf(20), *got.Response)
			return
		}
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
	})
}

// secretByForm reads what is in a sealed answer in another way than the package does: fingerprint, kind, header and trailer
// behind their lengths of 8 bytes, body.
func secretByForm(b []byte) (fp idempotency.Fingerprint, resp idempotency.Response, ok bool) {
	r := bytes.NewReader(b)
	part := func() string {
		var size uint64
		ok = ok && binary.Read(r, binary.BigEndian, &size) == nil && size <= uint64(r.Len())
		text := make([]byte, map[bool]uint64{true: size}[ok])
		_, _ = r.Read(text)
		return string(text)
	}
	_, err := io.ReadFull(r, fp[:])
	kind, none := r.ReadByte()
	ok = err == nil && none == nil && kind <= 1
	resp.Omitted = kind == 1
	resp.Header, resp.Trailer = idempotency.Fields(part()), idempotency.Fields(part())
	resp.Body, _ = io.ReadAll(r)
	return fp, resp, ok
}

// FuzzSealedSecret reads anything as what was in a sealed answer, as behind a cipher that was taken in. Another reader says
// the same. What was read is sealed and opened once more, to the same answer.
func FuzzSealedSecret(f *testing.F) {
	sealed := func(t testing.TB, secret []byte) (idempotency.Record, error) {
		record := idempotency.Record{Attempt: 1, Response: &idempotency.Response{
			Status: http.StatusCreated, Header: ":sealed/1 kms\n", Body: secret,
		}}
		got, _, err := testservice.MustSeal(t, fixedStore{record}, testservice.SealingWith(testservice.KeyService{})).Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
		return got, err
	}
	secretOf := func(t testing.TB, resp idempotency.Response) []byte {
		inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
		testservice.MustComplete(t, testservice.MustSeal(t, inner, testservice.SealingWith(testservice.KeyService{})), testservice.NumberedKey(1), resp)
		return testservice.MustRead(t, inner, testservice.NumberedKey(1)).Response.Body
	}
	for _, resp := range []idempotency.Response{testservice.BodyOf(3), frozen, {Status: 200, Omitted: true}, {Header: "A\n", Trailer: "B\n"}} {
		secret := secretOf(f, resp)
		f.Add(secret)
		f.Add(secret[:len(secret)/2])
	}
	f.Add(bytes.Repeat([]byte{0xff}, 60))
	f.Fuzz(func(t *testing.T, secret []byte) {
		fp, want, ok := secretByForm(secret)
		got, err := sealed(t, secret)
		if !ok {
			require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
			return
		}
		require.NoError(t, err)
		want.Status = http.StatusCreated
		require.Equal(t, fp, got.Fingerprint)
		require.Equal(t, want.Header+"|"+want.Trailer, got.Response.Header+"|"+got.Response.Trailer)
		require.Equal(t, string(want.Body), string(got.Response.Body))
		require.Equal(t, want.Omitted, got.Response.Omitted)
		_, again, ok := secretByForm(secretOf(t, *got.Response))
		require.True(t, ok)
		if !want.Omitted {
			require.Equal(t, string(want.Body), string(again.Body))
		}
		require.Equal(t, want.Header+"|"+want.Trailer, again.Header+"|"+again.Trailer)
	})
}
