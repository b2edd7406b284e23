package seal_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/seal"
)

func TestNewReportsEveryFault(t *testing.T) {
	t.Parallel()
	secret := make([]byte, 32)
	store, err := seal.New(nil, seal.Options{Keys: []seal.Key{
		{ID: "", Secret: secret}, {ID: "a b", Secret: secret}, {ID: strings.Repeat("x", 33), Secret: secret},
		{ID: "twice", Secret: secret}, {ID: "twice", Secret: secret}, {ID: "short", Secret: secret[1:]}, {ID: "line\n", Secret: secret},
	}})
	require.Nil(t, store)
	for _, fault := range []string{
		"Store is nil", "Keys[0].ID", "Keys[1].ID", "Keys[2].ID", "Keys[4].ID", "Keys[5].Secret", "Keys[6].ID",
	} {
		require.ErrorContains(t, err, fault)
	}
	require.NotContains(t, err.Error(), "Keys[3]")
	_, err = seal.New(testservice.NewSpyStore(), seal.Options{})
	require.ErrorContains(t, err, "no Keys")
	testservice.MustSeal(t, testservice.NewSpyStore(), seal.Options{Keys: []seal.Key{
		{ID: "A.b_c-" + strings.Repeat("9", 26), Secret: secret},
	}})
}

func TestKeyDoesNotPrintItsSecret(t *testing.T) {
	t.Parallel()
	key := seal.Key{ID: "2026", Secret: []byte(strings.Repeat("secret", 6)), Cipher: testservice.KeyService{}}
	opts := seal.Options{Keys: []seal.Key{key}}
	printers := map[string]func(any) string{
		"json": func(v any) string {
			b, err := json.Marshal(v)
			require.NoError(t, err)
			return string(b)
		},
		"xml": func(v any) string {
			b, err := xml.Marshal(v)
			require.NoError(t, err)
			return string(b)
		},
		"slog.TextHandler": func(v any) string {
			var b strings.Builder
			slog.New(slog.NewTextHandler(&b, nil)).Info("key", "key", v)
			return b.String()
		},
		"slog.JSONHandler": func(v any) string {
			var b strings.Builder
			slog.New(slog.NewJSONHandler(&b, nil)).Info("key", "key", v)
			return b.String()
		},
	}
	for _, format := range testservice.FormatVerbs() {
		printers[format] = func(v any) string { return fmt.Sprintf(format, v) }
	}
	// The first bytes of the secret, in the forms in which they would be printed.
	forms := []string{"sec", "s e c", "115 101 99", "0x73, 0x65", "736563726574", "c2Vj"}
	for name, print := range printers {
		t.Run(name, func(t *testing.T) {
			for _, value := range []any{key, &key, opts, &opts, opts.Keys} {
				shown := print(value)
				require.Contains(t, shown, "seal.Key(2026)")
				for _, form := range forms {
					require.NotContains(t, shown, form)
				}
			}
		})
	}
}

// Keys may come from configuration. What is written of them cannot be taken for that.
func TestKeysFromJSON(t *testing.T) {
	t.Parallel()
	var opts seal.Options
	secret := base64.StdEncoding.EncodeToString(testservice.SealKey("1").Secret)
	require.NoError(t, json.Unmarshal([]byte(`{"Keys": [{"ID": "1", "Secret": "`+secret+`"}]}`), &opts))
	require.Equal(t, testservice.Sealing("1"), opts)
	written, err := json.Marshal(opts)
	require.NoError(t, err)
	require.Error(t, json.Unmarshal(written, &opts), "what was written has no secrets")
}

// The settings may be thrown away.
func TestOptionsAreFrozen(t *testing.T) {
	t.Parallel()
	opts := testservice.Sealing("1")
	inner := testservice.NewSpyStore()
	first := testservice.Setup{Store: testservice.MustSeal(t, inner, opts)}.Serve(t, testservice.Echo)
	second := testservice.Setup{Store: testservice.MustSeal(t, inner, opts)}.Serve(t, testservice.Echo)
	clear(opts.Keys[0].Secret)
	opts.Keys[0] = testservice.SealKey("2")
	testservice.RequireReplay(t, first.Post("key", "body"), second.Post("key", "body"))
}

// forger writes to the Redis behind a sealed store.
type forger struct {
	*testservice.Service
	t      *testing.T
	client *redis.Client
	prefix string
}

// newForger starts a service with one sealed store per prefix. Its users are named by a header.
func newForger(t *testing.T, client *redis.Client, prefix string, opts seal.Options) *forger {
	t.Helper()
	inner := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	svc := testservice.Setup{
		Store: testservice.MustSeal(t, inner, opts), User: user, Opts: idempotency.Options{FailOpen: true},
	}.Serve(t, secrets)
	return &forger{svc, t, client, prefix}
}

// ask sends the request that forgeries are about.
func (f *forger) ask() testservice.Answer { return f.as("alice", "key") }

// as sends it as another user, or with another key.
func (f *forger) as(user, key string) testservice.Answer {
	return f.Post(key, "body", testservice.WithHeader("X-User", user))
}

// only returns the name of the one record that there is.
func (f *forger) only() string {
	f.t.Helper()
	names := testservice.RedisKeys(f.t, f.client, f.prefix)
	require.Len(f.t, names, 1)
	return names[0]
}

func (f *forger) get(name string) string {
	f.t.Helper()
	value, err := f.client.Get(f.t.Context(), name).Result()
	require.NoError(f.t, err)
	return value
}

func (f *forger) put(name, value string) {
	f.t.Helper()
	require.NoError(f.t, f.client.Set(f.t.Context(), name, value, time.Hour).Err())
}

// record is a completed record in Redis that is taken apart.
type record struct {
	head string
	resp idempotency.Response
}

func parseRecord(t *testing.T, value string) record {
	t.Helper()
	head, rest, found := strings.Cut(value, "\n")
	require.True(t, found)
	r := record{head: head}
	require.NoError(t, r.resp.UnmarshalBinary([]byte(rest)))
	r.resp = r.resp.Clone()
	return r
}

// String puts the record together again, with a checksum that is right.
func (r record) String() string {
	resp, _ := r.resp.MarshalBinary()
	return r.head + "\n" + string(resp)
}

// with returns the record with a word of its head in place of what it was.
func (r record) with(name, value string) record {
	r.head = regexp.MustCompile(name+`=\S+`).ReplaceAllString(r.head, name+"="+value)
	return r
}

func (r record) word(name string) string {
	return regexp.MustCompile(name + `=(\S+)`).FindStringSubmatch(r.head)[1]
}

// unbound are the words of a record that nothing is bound to: whoever changes them changes no answer.
var unbound = regexp.MustCompile(`(lease|ttl|token|created)=(\S+)`)

// No byte of a record can be changed so that it says something else.
func TestSealedRecordWithAByteChanged(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	t.Run("over HTTP", func(t *testing.T) {
		t.Parallel()
		f := newForger(t, client, "http:", testservice.Sealing("1"))
		first := f.ask()
		name := f.only()
		value := f.get(name)
		free := map[int]bool{}
		for _, match := range unbound.FindAllStringSubmatchIndex(value[:strings.IndexByte(value, '\n')], -1) {
			for i := match[4]; i < match[5]; i++ {
				free[i] = true
			}
		}
		for i := range value {
			forged := []byte(value)
			forged[i] ^= 1
			f.put(name, string(forged))
			if got := f.ask(); !free[i] || got.Status != http.StatusCreated {
				requireUnreadable(t, f.Service, got)
			} else {
				testservice.RequireReplay(t, first, got)
			}
		}
		genuine := parseRecord(t, value)
		for i := range genuine.resp.Body { // with the checksum of what is forged
			forged := record{genuine.head, genuine.resp.Clone()}
			forged.resp.Body[i] ^= 1
			f.put(name, forged.String())
			requireUnreadable(t, f.Service, f.ask())
		}
		f.put(name, genuine.String())
		testservice.RequireReplay(t, first, f.ask())
		require.EqualValues(t, 1, f.Runs.Load())
	})
	t.Run("every bit", func(t *testing.T) {
		t.Parallel()
		inner := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "bits:"})
		store := testservice.MustSeal(t, inner, testservice.Sealing("1"))
		request := testservice.AttemptFor(time.Hour)
		begin := func() (idempotency.Record, error) {
			got, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), request)
			require.Nil(t, claim)
			return got, err
		}
		testservice.MustComplete(t, store, testservice.NumberedKey(1), testservice.BodyOf(100))
		name := testservice.RedisKeys(t, client, "bits:")[0]
		value := client.Get(t.Context(), name).Val()
		want, err := begin()
		require.NoError(t, err)
		try := func(forged string) {
			require.NoError(t, client.Set(t.Context(), name, forged, time.Hour).Err())
			got, err := begin()
			if err != nil {
				require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
				return
			}
			got.Created = want.Created
			require.Equal(t, want, got)
		}
		genuine := parseRecord(t, value)
		for bit := range 8 * len(value) {
			forged := []byte(value)
			forged[bit/8] ^= 1 << (bit % 8)
			try(string(forged))
		}
		for bit := range 8 * len(genuine.resp.Body) {
			forged := record{genuine.head, genuine.resp.Clone()}
			forged.resp.Body[bit/8] ^= 1 << (bit % 8)
			try(forged.String())
		}
	})
}

// No part of a record can be put in the place of another one.
func TestForgedSealedRecords(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	opts := testservice.Sealing("1", "2", "alias")
	opts.Keys[2].Secret = opts.Keys[0].Secret
	f := newForger(t, client, "forged:", opts)

	// The first attempt is marked as released after its completion, so that there is a second one.
	f.ask()
	name := f.only()
	older := parseRecord(t, f.get(name))
	f.put(name, strings.Replace(older.head, " done ", " released ", 1)+"\n")
	first := f.ask()
	require.Equal(t, http.StatusCreated, first.Status)
	value := f.get(name)
	genuine := parseRecord(t, value)
	require.Equal(t, "2", genuine.word("attempt"))

	// Other answers: all to requests that look the same.
	elsewhere := func(prefix string, opts seal.Options, user, key string) record {
		other := newForger(t, client, prefix, opts)
		require.Equal(t, first, other.as(user, key))
		return parseRecord(t, other.get(other.only()))
	}
	otherUser := elsewhere("other user:", testservice.Sealing("1"), "bob", "key")
	otherKey := elsewhere("other key:", testservice.Sealing("1"), "alice", "key-2")
	secondKey := elsewhere("second key:", testservice.Sealing("2"), "alice", "key")
	unknownKey := elsewhere("unknown key:", testservice.Sealing("3"), "alice", "key")
	otherSecret := elsewhere("other secret:", seal.Options{Keys: []seal.Key{
		{ID: "1", Secret: bytes.Repeat([]byte("x"), 32)},
	}}, "alice", "key")
	clearly := record{genuine.head, idempotency.Response{Status: http.StatusCreated, Body: []byte("forged")}}

	under := func(head string, resp idempotency.Response) record { return record{head, resp} }
	headOf := func(r record, status int) record { // with the answer of genuine
		return record{r.head, idempotency.Response{Status: status, Header: genuine.resp.Header, Body: genuine.resp.Body}}
	}
	naming := func(r record, id string) record {
		r.resp.Header = idempotency.Fields(":sealed/1 " + id + "\n")
		return r
	}
	status := func(status int) record { return headOf(genuine, status) }
	header := under(genuine.head, genuine.resp)
	header.resp.Header += idempotency.NewFields(http.Header{"Set-Cookie": {"forged"}})
	trailer := under(genuine.head, genuine.resp)
	trailer.resp.Trailer = idempotency.NewFields(http.Header{"X-Sum": {"forged"}})
	longer := under(genuine.head, genuine.resp.Clone())
	longer.resp.Body = append(longer.resp.Body, 0)

	for what, forged := range map[string]record{
		"record of another user":                      otherUser,
		"record of another key":                       otherKey,
		"record that an unknown key has sealed":       unknownKey,
		"record that another secret has sealed":       otherSecret,
		"answer of an older attempt":                  under(genuine.head, older.resp),
		"answer to another user":                      under(genuine.head, otherUser.resp),
		"answer of another key":                       under(genuine.head, otherKey.resp),
		"answer that the second key has sealed":       under(genuine.head, secondKey.resp),
		"head of an older attempt":                    headOf(older, 201),
		"head of another user":                        headOf(otherUser, 201),
		"status 200":                                  status(200),
		"status 202":                                  status(202),
		"status 0":                                    status(0),
		"status 500":                                  status(500),
		"status 2^32 + 201":                           status(min(1<<32+201, math.MaxInt)),
		"another fingerprint":                         genuine.with("fingerprint", secondKey.word("fingerprint")),
		"the fingerprint of another key":              genuine.with("fingerprint", otherKey.word("fingerprint")),
		"no fingerprint":                              genuine.with("fingerprint", strings.Repeat("0", 64)),
		"attempt 1":                                   genuine.with("attempt", "1"),
		"attempt 3":                                   genuine.with("attempt", "3"),
		"answer as if of the second key":              naming(genuine, "2"),
		"answer as if of a key with its secret":       naming(genuine, "alias"),
		"answer of the second key as if of the first": naming(under(genuine.head, secondKey.resp), "1"),
		"record of the second key as if of the first": naming(secondKey, "1"),
		"answer as if of an unknown key":              naming(genuine, "3"),
		"answer of no key":                            naming(genuine, ""),
		"answer in the clear":                         clearly,
		"header in the clear":                         header,
		"trailer in the clear":                        trailer,
		"a byte more":                                 longer,
	} {
		t.Run(what, func(t *testing.T) {
			f.put(name, forged.String())
			requireUnreadable(t, f.Service, f.ask())
		})
	}
	t.Run("truncated", func(t *testing.T) {
		for n := range value {
			f.put(name, value[:n])
			requireUnreadable(t, f.Service, f.ask())
		}
		for n := range genuine.resp.Body { // with the length and the checksum of what is left
			forged := genuine
			forged.resp.Body = genuine.resp.Body[:n]
			f.put(name, forged.String())
			requireUnreadable(t, f.Service, f.ask())
		}
	})
	f.put(name, genuine.String())
	testservice.RequireReplay(t, first, f.ask())
	require.EqualValues(t, 2, f.Runs.Load(), "the two attempts")
}

// What a seal does not keep a writer from: none of it shows a forged answer.
func TestWhatAWriterOfASealedStoreCanDo(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	for _, row := range []struct {
		name string
		do   func(*forger, string, record)
		want func(*testing.T, testservice.Answer, testservice.Answer)
		runs int64
	}{
		{"delete the record", func(f *forger, name string, _ record) {
			require.NoError(f.t, client.Del(f.t.Context(), name).Err())
		}, func(t *testing.T, first, got testservice.Answer) { require.Equal(t, first, got) }, 2},
		{"mark it as released", func(f *forger, name string, r record) {
			f.put(name, strings.Replace(r.head, " done ", " released ", 1)+"\n")
		}, func(t *testing.T, first, got testservice.Answer) { require.Equal(t, first, got) }, 2},
		{"mark it as running", func(f *forger, name string, r record) {
			r.head = strings.Replace(r.head, " done ", " running ", 1)
			f.put(name, r.with("lease", fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())).head+"\n")
		}, func(t *testing.T, _, got testservice.Answer) {
			testservice.RequireProblem(t, got, http.StatusConflict, "in-progress")
		}, 1},
		{"mark its body as not kept", func(f *forger, name string, r record) {
			r.resp = idempotency.Response{Status: 299, Omitted: true}
			f.put(name, r.String())
		}, func(t *testing.T, _, got testservice.Answer) {
			require.Zero(t, testservice.RequireProblem(t, got, http.StatusConflict, "not-replayable").OriginalStatus)
		}, 1},
		{"change its time and token", func(f *forger, name string, r record) {
			f.put(name, r.with("created", "1").with("token", strings.Repeat("0", 32)).with("lease", "9").String())
		}, testservice.RequireReplay, 1},
		{"bring an older record back", func(f *forger, name string, r record) {
			require.NoError(f.t, client.Del(f.t.Context(), name).Err())
			f.ask()
			f.put(name, r.String())
		}, testservice.RequireReplay, 2},
		{"bring an older answer back", func(f *forger, name string, r record) {
			require.NoError(f.t, client.Del(f.t.Context(), name).Err())
			f.ask()
			f.put(name, record{parseRecord(f.t, f.get(name)).head, r.resp}.String())
		}, testservice.RequireReplay, 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := newForger(t, client, fmt.Sprintf("%x:", row.name), testservice.Sealing("1"))
			first := f.ask()
			name := f.only()
			row.do(f, name, parseRecord(t, f.get(name)))
			row.want(t, first, f.ask())
			require.Equal(t, row.runs, f.Runs.Load())
		})
	}
}

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
