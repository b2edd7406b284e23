package wire_test

import (
	"fmt"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
)

// pays returns a valid request with a key and "Connection: close".
func pays(path, key string) string {
	return requestOf("POST "+path+" HTTP/1.1", "Idempotency-Key: "+key)
}

func keyed(key string) string { return pays("/pay", key) }

// fields returns a valid request, with lines in the place of the key.
func fields(lines ...string) string { return requestOf("POST /pay HTTP/1.1", lines...) }

// lined returns a request with key k and the given request line.
func lined(line string) string { return requestOf(line, "Idempotency-Key: k") }

func requestOf(line string, fields ...string) string {
	return bare(line, append(fields, "Content-Length: 12")...) + `{"amount":1}`
}

// framed returns a request with key k and an arbitrary body. The caller gives the length in lines, or omits the
// length.
func framed(body string, lines ...string) string {
	return bare("POST /pay HTTP/1.1", append(lines, "Idempotency-Key: k")...) + body
}

func bare(line string, fields ...string) string {
	lines := append([]string{line, "Host: example.com", "Connection: close"}, fields...)
	return strings.Join(lines, "\r\n") + "\r\n\r\n"
}

const isChunked = "Transfer-Encoding: chunked"

func chunked(body string, lines ...string) string { return framed(body, append(lines, isChunked)...) }

// open keeps the connection open after a request, for the next request.
func open(request string) string { return strings.Replace(request, "Connection: close\r\n", "", 1) }

func old(request string) string { return strings.Replace(request, "HTTP/1.1", "HTTP/1.0", 1) }

func lacking(request, part string) string { return strings.Replace(request, part, "", 1) }

func onlyLF(request string) string { return strings.ReplaceAll(request, "\r\n", "\n") }

func sendsJSON(body string) string {
	return framed(body, length+fmt.Sprint(len(body)), "Content-Type: application/json")
}

func sendsForm(announced, boundary, value string) string {
	body := "--" + boundary + "\r\nContent-Disposition: form-data; name=n\r\n\r\n" + value + "\r\n--" + boundary + "--\r\n"
	return framed(body, length+fmt.Sprint(len(body)), "Content-Type: multipart/form-data; boundary="+announced)
}

const (
	invalid     = "400 key-invalid"
	unreadable  = "400 body-invalid"
	tooLarge    = "413 body-too-large"
	reused      = "409 key-reused"
	noRequest   = "400 net/http"
	noCoding    = "501 net/http"
	hostLine    = "Host: example.com\r\n"
	keyIs       = "Idempotency-Key: "
	override    = "X-HTTP-Method-Override: "
	length      = "Content-Length: "
	amountBody  = `{"amount":1}`
	chunkedBody = "c\r\n" + amountBody + "\r\n0\r\n\r\n"
)

var wireTables = map[string]struct {
	opts idempotency.Options
	rows []wireRow
}{
	"key": {rows: []wireRow{
		{"bare", keyed("k"), "201", "replay", 1},
		{"UUID", keyed("8e03978e-40d5-43dd-bc93-6894a57f9324"), "201", "replay", 1},
		{"quoted", keyed(`"k"`), "201", "replay", 1},
		{"bare, then quoted", open(keyed("k")) + keyed(`"k"`), "201, replay", "replay, replay", 1},
		{"other case", open(keyed("k")) + keyed("K"), "201, 201", "replay, replay", 2},
		{"blanks around it", open(keyed("k")) + keyed(" \t k \t "), "201, replay", "replay, replay", 1},
		{"quoted comma", keyed(`"a,b"`), "201", "replay", 1},
		{"escaped quote", keyed(`"a\"b"`), "201", "replay", 1},
		{"escaped backslash", keyed(`"a\\b"`), "201", "replay", 1},
		{"escaped letter", keyed(`"a\b"`), invalid, invalid, 0},
		{"bare backslash", keyed(`a\b`), invalid, invalid, 0},
		{"single quotes are part of it", open(keyed("'k'")) + keyed("k"), "201, 201", "replay, replay", 2},
		{"sf-token", keyed("*k/:"), "201", "replay", 1},
		{"sf-binary is not decoded", open(keyed(":YQ==:")) + keyed("a"), "201, 201", "replay, replay", 2},
		{"percent is not decoded", open(keyed("%61")) + keyed("a"), "201, 201", "replay, replay", 2},
		{"empty", keyed(""), invalid, invalid, 0},
		{"blanks only", keyed("  \t "), invalid, invalid, 0},
		{"empty string", keyed(`""`), invalid, invalid, 0},
		{"blank inside", keyed("a b"), invalid, invalid, 0},
		{"quoted blank", keyed(`"a b"`), invalid, invalid, 0},
		{"tab inside", keyed("a\tb"), invalid, invalid, 0},
		{"list", keyed("a, b"), invalid, invalid, 0},
		{"list of the same", keyed("k,k"), invalid, invalid, 0},
		{"list of strings", keyed(`"a", "b"`), invalid, invalid, 0},
		{"parameter", keyed(`"k";v=1`), invalid, invalid, 0},
		{"bare parameter", keyed("k;v=1"), invalid, invalid, 0},
		{"only opened", keyed(`"k`), invalid, invalid, 0},
		{"only closed", keyed(`k"`), invalid, invalid, 0},
		{"one quote", keyed(`"`), invalid, invalid, 0},
		{"255 characters", keyed(strings.Repeat("k", 255)), "201", "replay", 1},
		{"255 quoted", keyed(`"` + strings.Repeat("k", 255) + `"`), "201", "replay", 1},
		{"256 characters", keyed(strings.Repeat("k", 256)), invalid, invalid, 0},
		{"256 quoted", keyed(`"` + strings.Repeat("k", 256) + `"`), invalid, invalid, 0},
		{"64 KiB", keyed(strings.Repeat("k", 64<<10)), invalid, invalid, 0},
		{"900 KiB", keyed(strings.Repeat("k", 900<<10)), invalid, invalid, 0},
		{"2 MiB", keyed(strings.Repeat("k", 2<<20)), "431 net/http", "431 net/http", 0},
		{"invalid UTF-8", keyed("\xff\xfe"), invalid, invalid, 0},
		{"Latin-1", keyed("caf\xe9"), invalid, invalid, 0},
		{"UTF-8", keyed("café"), invalid, invalid, 0},
		{"quoted UTF-8", keyed(`"café"`), invalid, invalid, 0},
		{"byte order mark", keyed("\ufeffk"), invalid, invalid, 0},
		{"full-width letters", keyed("ｋ"), invalid, invalid, 0},
		{"NUL", keyed("a\x00b"), noRequest, noRequest, 0},
		{"ESC", keyed("a\x1bb"), noRequest, noRequest, 0},
		{"DEL", keyed("a\x7fb"), noRequest, noRequest, 0},
		{"bare CR", keyed("a\rb"), noRequest, noRequest, 0},
		{"obs-fold", keyed("a\r\n b"), invalid, invalid, 0},
		{"obs-fold with a tab", keyed("a\r\n\tb"), invalid, invalid, 0},
		{"obs-fold before it", open(keyed("\r\n k")) + keyed("k"), "201, replay", "replay, replay", 1},
		{"obs-fold hides no field", keyed("a\r\n Idempotency-Key: b"), invalid, invalid, 0},
		{"two lines", fields(keyIs+"a", keyIs+"b"), invalid, invalid, 0},
		{"two equal lines", fields(keyIs+"k", keyIs+"k"), invalid, invalid, 0},
		{"two lines, one empty", fields(keyIs+"k", keyIs), invalid, invalid, 0},
		{"two lines in other cases", fields(keyIs+"a", "IDEMPOTENCY-KEY: b"), invalid, invalid, 0},
		{"a string in two lines", fields(keyIs+`"a`, keyIs+`b"`), invalid, invalid, 0},
		{"400 lines", fields(strings.Repeat(keyIs+"k\r\n", 399) + keyIs + "k"), invalid, invalid, 0}, // Go 1.27 reads 500 at most
		{"name in lower case", fields("idempotency-key: k"), "201", "replay", 1},
		{"name in capitals", fields("IDEMPOTENCY-KEY:k"), "201", "replay", 1},
		{"name with an underscore", fields("Idempotency_Key: k"), "201", "201", 2},
		{"name with X-", fields("X-Idempotency-Key: k"), "201", "201", 2},
		{"blank after the name", fields("Idempotency-Key : k"), noRequest, noRequest, 0},
		{"name without a colon", fields("Idempotency-Key"), noRequest, noRequest, 0},
		{"NUL in the name", fields("Idempotency\x00-Key: k"), noRequest, noRequest, 0},
		{"named by Connection", fields(keyIs+"k", "Connection: idempotency-key"), "201", "replay", 1},
		{"in the trailer only", bare("POST /pay HTTP/1.1", isChunked, "Trailer: Idempotency-Key") +
			"1\r\nx\r\n0\r\n" + keyIs + "k\r\n\r\n", "201", "201", 2},
		{"another one in the trailer", chunked("1\r\nx\r\n0\r\n" + keyIs + "other\r\n\r\n"), "201", "replay", 1},
		{"in the query only", lacking(pays("/pay?Idempotency-Key=k", "k"), keyIs+"k\r\n"), "201", "201", 2},
	}},
	"body": {rows: []wireRow{
		{"none", framed(""), "201", "replay", 1},
		{"length 0", framed("", length+"0"), "201", "replay", 1},
		{"none and length 0", open(framed("")) + framed("", length+"0"), "201, replay", "replay, replay", 1},
		{"without a length it is none", framed(amountBody), "201", "replay", 1},
		{"another one", open(framed("a", length+"1")) + framed("b", length+"1"), "201, " + reused, "replay, " + reused, 1},
		{"NUL and invalid UTF-8", framed("\x00\xff\r\n", length+"4"), "201", "replay", 1},
		{"as large as allowed", framed(strings.Repeat("x", 1000), length+"1000"), "201", "replay", 1},
		{"too large", framed(strings.Repeat("x", 1001), length+"1001"), tooLarge, tooLarge, 0},
		{"too large to be drained", framed(strings.Repeat("x", 300<<10), length+"307200"), tooLarge, tooLarge, 0},
		{"announced too large", framed("x", length+"9223372036854775807") + halfClose, tooLarge, tooLarge, 0},
		{"length beyond 63 bits", framed("x", length+"9223372036854775808"), noRequest, noRequest, 0},
		{"negative length", framed("x", length+"-1"), noRequest, noRequest, 0},
		{"length with a sign", framed("x", length+"+1"), noRequest, noRequest, 0},
		{"hexadecimal length", framed("x", length+"0x1"), noRequest, noRequest, 0},
		{"empty length", framed("x", length), noRequest, noRequest, 0},
		{"length with blanks around it", framed("x", length+" \t1 "), "201", "replay", 1},
		{"length with a zero in front", framed("x", length+"01"), "201", "replay", 1},
		{"list of lengths", framed("x", length+"1, 1"), noRequest, noRequest, 0},
		{"two lengths", framed("xy", length+"1", length+"2"), noRequest, noRequest, 0},
		{"the same length twice", framed("x", length+"1", length+"1"), "201", "replay", 1},
		{"cut", framed("abc", length+"10") + halfClose, unreadable, unreadable, 0},
		{"cut before it begins", framed("", length+"10") + halfClose, unreadable, unreadable, 0},
		{"longer than announced", framed("xyz", length+"1"), "201", "replay", 1},
		{"the rest is no request", open(framed("xyz", length+"1")) + "\r\n\r\n",
			"201, " + noRequest, "replay, " + noRequest, 1},
		{"slow", framed(`{"amo`+meanwhile+`unt":1}`, length+"12"), "201", "replay", 1},
		{"slow, byte by byte", framed(strings.Join(strings.Split(amountBody, ""), meanwhile), length+"12"), "201", "replay", 1},
		{"slow and cut", framed(`{"amo`+meanwhile, length+"12") + halfClose, unreadable, unreadable, 0},
		{"Content-Encoding", framed("\x1f\x8b", length+"2", "Content-Encoding: gzip"), "201", "replay", 1},
		{"other Content-Encoding", open(framed("xy", length+"2", "Content-Encoding: gzip")) + framed("xy", length+"2"),
			"201, " + reused, "replay, " + reused, 1},
		{"other parameters of the type", open(framed("x", length+"1", "Content-Type: text/plain; charset=a")) +
			framed("x", length+"1", "Content-Type: TEXT/plain;charset=b"), "201, replay", "replay, replay", 1},
		{"other type", open(framed("x", length+"1", "Content-Type: text/plain")) +
			framed("x", length+"1", "Content-Type: text/html"), "201, " + reused, "replay, " + reused, 1},
		{"type that is none", framed("x", length+"1", "Content-Type: \xff;;=/"), "201", "replay", 1},
		{"multipart", framed("--b\r\n\r\nx\r\n--b--", length+"15", "Content-Type: multipart/form-data; boundary=b"),
			"201", "replay", 1},
		{"multipart that ends early", framed("--b\r\n\r\nx", length+"8", "Content-Type: multipart/form-data; boundary=b"),
			"201", "replay", 1},
	}},
	"chunked": {rows: []wireRow{
		{"one chunk", chunked(chunkedBody), "201", "replay", 1},
		{"other chunks", open(chunked(chunkedBody)) + chunked("8\r\n{\"amount\r\n4\r\n\":1}\r\n0\r\n\r\n"),
			"201, replay", "replay, replay", 1},
		{"with and without", open(chunked(chunkedBody)) + keyed("k"), "201, replay", "replay, replay", 1},
		{"empty", chunked("0\r\n\r\n"), "201", "replay", 1},
		{"coding in capitals", framed(chunkedBody, "Transfer-Encoding: CHUNKED"), "201", "replay", 1},
		{"extension", chunked("1;a=\"b\";c\r\nx\r\n0;d\r\n\r\n"), "201", "replay", 1},
		{"extension of 4 KiB", chunked("1;" + strings.Repeat("a", 4096) + "\r\nx\r\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"extensions without end", chunked(strings.Repeat("1;"+strings.Repeat("a", 2000)+"\r\nx\r\n", 20) + "0\r\n\r\n"),
			unreadable, unreadable, 0},
		{"size in capitals, with zeros", chunked("000C\r\n" + amountBody + "\r\n000\r\n\r\n"), "201", "replay", 1},
		{"blank after the size", chunked("1 \r\nx\r\n0\r\n\r\n"), "201", "replay", 1},
		{"blank before the size", chunked(" 1\r\nx\r\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"size with 0x", chunked("0x1\r\nx\r\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"size with a sign", chunked("+1\r\nx\r\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"negative size", chunked("-1\r\nx\r\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"no size", chunked("\r\nx\r\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"size that is no number", chunked("g\r\nx\r\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"size beyond 64 bits", chunked("10000000000000000\r\nx\r\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"size of 64 bits, cut", chunked("ffffffffffffffff\r\nx") + halfClose, unreadable, unreadable, 0},
		{"longer than its size", chunked("1\r\nxy\r\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"shorter than its size", chunked("5\r\nx\r\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"bare LF after the size", chunked("1\nx\r\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"bare LF after the chunk", chunked("1\r\nx\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"bare CR in the size", chunked("1\rx\r\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"NUL in the size", chunked("1\x00\r\nx\r\n0\r\n\r\n"), unreadable, unreadable, 0},
		{"cut before a size", chunked("") + halfClose, unreadable, unreadable, 0},
		{"cut in a size", chunked("1") + halfClose, unreadable, unreadable, 0},
		{"cut in a chunk", chunked("5\r\nabc") + halfClose, unreadable, unreadable, 0},
		{"cut after a chunk", chunked("1\r\nx\r\n") + halfClose, unreadable, unreadable, 0},
		{"cut before the trailer", chunked("1\r\nx\r\n0\r\n") + halfClose, unreadable, unreadable, 0},
		{"cut in the trailer", chunked("1\r\nx\r\n0\r\nX-Sum: 1\r\n") + halfClose, unreadable, unreadable, 0},
		{"trailer", chunked("1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n", "Trailer: X-Sum"), "201", "replay", 1},
		{"other trailer", open(chunked("1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n")) + chunked("1\r\nx\r\n0\r\nX-Sum: 2\r\n\r\n"),
			"201, replay", "replay, replay", 1},
		{"trailer without a colon", chunked("1\r\nx\r\n0\r\nX-Sum\r\n\r\n"), unreadable, unreadable, 0},
		{"trailer of 8 KiB", chunked("1\r\nx\r\n0\r\nX-Sum: " + strings.Repeat("1", 8<<10) + "\r\n\r\n"),
			unreadable, unreadable, 0},
		{"length announced as a trailer", chunked(chunkedBody, "Trailer: Content-Length"), noRequest, noRequest, 0},
		{"as large as allowed", chunked("3e8\r\n" + strings.Repeat("x", 1000) + "\r\n0\r\n\r\n"), "201", "replay", 1},
		{"too large", chunked("3e9\r\n" + strings.Repeat("x", 1001) + "\r\n0\r\n\r\n"), tooLarge, tooLarge, 0},
		{"too large in small chunks", chunked(strings.Repeat("1\r\nx\r\n", 1001) + "0\r\n\r\n"), tooLarge, tooLarge, 0},
		{"too large to be drained", chunked(strings.Repeat("64\r\n"+strings.Repeat("x", 100)+"\r\n", 3000) + "0\r\n\r\n"),
			tooLarge, tooLarge, 0},
		{"slow", chunked("5\r\n{\"amo" + meanwhile + "\r\n7\r\nunt\":1}\r\n0\r\n" + meanwhile + "\r\n"), "201", "replay", 1},
		{"and a length", chunked(chunkedBody, length+"3"), "201", "replay", 1},
		{"and a length that is none", chunked(chunkedBody, length+"x"), noRequest, noRequest, 0},
		{"twice", chunked(chunkedBody, isChunked), noCoding, noCoding, 0},
		{"list", framed(chunkedBody, "Transfer-Encoding: gzip, chunked"), noCoding, noCoding, 0},
		{"identity", framed(amountBody, "Transfer-Encoding: identity", length+"12"), noCoding, noCoding, 0},
		{"no coding", framed(chunkedBody, "Transfer-Encoding:"), noCoding, noCoding, 0},
		{"unknown coding", framed(chunkedBody, "Transfer-Encoding: xchunked"), noCoding, noCoding, 0},
		{"obs-fold before the coding", framed(chunkedBody, "Transfer-Encoding:\r\n chunked"), "201", "replay", 1},
		{"HTTP/1.0 knows no codings", old(framed("x", isChunked, length+"1")), "201", "replay", 1},
	}},
	"expect": {rows: []wireRow{
		{"100", fields(keyIs+"k", "Expect: 100-continue"), "100, 201", "100, replay", 1},
		{"100 in capitals", fields(keyIs+"k", "Expect: 100-CONTINUE"), "100, 201", "100, replay", 1},
		{"100, chunked", chunked(chunkedBody, "Expect: 100-continue"), "100, 201", "100, replay", 1},
		{"100, without a body", framed("", "Expect: 100-continue"), "201", "replay", 1},
		{"100, and an invalid key", fields(keyIs, "Expect: 100-continue"), invalid, invalid, 0},
		{"100, and too large a body", framed("", length+"1001", "Expect: 100-continue"), tooLarge, tooLarge, 0},
		{"100, and no body", framed("", length+"12", "Expect: 100-continue") + halfClose,
			"100, " + unreadable, "100, " + unreadable, 0},
		{"100 in HTTP/1.0", old(fields(keyIs+"k", "Expect: 100-continue")), "201", "replay", 1},
		{"something else", fields(keyIs+"k", "Expect: a miracle"), "417 net/http", "417 net/http", 0},
	}},
	"method": {rows: []wireRow{
		{"PATCH", lined("PATCH /pay HTTP/1.1"), "201", "replay", 1},
		{"POST and PATCH", open(keyed("k")) + lined("PATCH /pay HTTP/1.1"), "201, 201", "replay, replay", 2},
		{"GET", lined("GET /pay HTTP/1.1"), "201", "201", 2},
		{"GET with an invalid key", requestOf("GET /pay HTTP/1.1", keyIs+"\xff", keyIs), "201", "201", 2},
		{"HEAD", lined("HEAD /pay HTTP/1.1"), "201", "201", 2},
		{"PUT", lined("PUT /pay HTTP/1.1"), "201", "201", 2},
		{"DELETE", lined("DELETE /pay HTTP/1.1"), "201", "201", 2},
		{"OPTIONS", lined("OPTIONS /pay HTTP/1.1"), "201", "201", 2},
		{"OPTIONS of the server", lined("OPTIONS * HTTP/1.1"), "200 net/http", "200 net/http", 0},
		{"TRACE", lined("TRACE /pay HTTP/1.1"), "201", "201", 2},
		{"CONNECT", lined("CONNECT example.com:443 HTTP/1.1"), "201", "201", 2},
		{"lower case is another method", lined("post /pay HTTP/1.1"), "201", "201", 2},
		{"unknown", lined("PAY /pay HTTP/1.1"), "201", "201", 2},
		{"no token", lined("PO(ST /pay HTTP/1.1"), noRequest, noRequest, 0},
		{"NUL", lined("POST\x00 /pay HTTP/1.1"), noRequest, noRequest, 0},
		{"none", lined(" /pay HTTP/1.1"), noRequest, noRequest, 0},
		{"override", fields(keyIs+"k", override+"DELETE"), "201", "replay", 1},
		{"override in a method that is not guarded",
			requestOf("PUT /pay HTTP/1.1", keyIs+"k", override+"POST"), "201", "201", 2},
		{"override in the second one", open(keyed("k")) + fields(keyIs+"k", override+"PUT"),
			"201, " + reused, "replay, " + reused, 1},
		{"other override", open(fields(keyIs+"k", "X-Method-Override: PUT")) + fields(keyIs+"k", "X-Method-Override: DELETE"),
			"201, " + reused, "replay, " + reused, 1},
		{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "201", "201", 2},
	}},
	"target": {rows: []wireRow{
		{"root", pays("/", "k"), "201", "replay", 1},
		{"asterisk", pays("*", "k"), "201", "replay", 1},
		{"absolute", pays("http://example.com/pay", "k"), "201", "replay", 1},
		{"absolute and not", open(keyed("k")) + pays("http://example.com/pay", "k"), "201, replay", "replay, replay", 1},
		{"absolute, of another host", open(keyed("k")) + pays("http://other.example/pay", "k"),
			"201, replay", "replay, replay", 1},
		{"absolute, of another scheme", open(keyed("k")) + pays("ftp://example.com/pay", "k"),
			"201, replay", "replay, replay", 1},
		{"absolute, without a path", pays("http://example.com", "k"), "201", "replay", 1},
		{"absolute, of no host", pays("http:///pay", "k"), "201", "replay", 1},
		{"absolute, of a bad host", pays("http://[::1/pay", "k"), noRequest, noRequest, 0},
		{"two slashes", open(keyed("k")) + pays("//pay", "k"), "201, 201", "replay, replay", 2},
		{"slash at the end", open(keyed("k")) + pays("/pay/", "k"), "201, 201", "replay, replay", 2},
		{"%2F", open(pays("/pay/1", "k")) + pays("/pay%2F1", "k"), "201, 201", "replay, replay", 2},
		{"%2f and %2F", open(pays("/pay%2f1", "k")) + pays("/pay%2F1", "k"), "201, 201", "replay, replay", 2},
		{"%70", open(keyed("k")) + pays("/%70ay", "k"), "201, 201", "replay, replay", 2},
		{"one dot", open(keyed("k")) + pays("/./pay", "k"), "201, 201", "replay, replay", 2},
		{"two dots", open(keyed("k")) + pays("/x/../pay", "k"), "201, 201", "replay, replay", 2},
		{"two dots above the root", pays("/../../pay", "k"), "201", "replay", 1},
		{"semicolon", open(keyed("k")) + pays("/pay;a=1", "k"), "201, 201", "replay, replay", 2},
		{"backslash", pays("/x\\pay", "k"), "201", "replay", 1},
		{"fragment", open(keyed("k")) + pays("/pay#x", "k"), "201, 201", "replay, replay", 2},
		{"NUL, escaped", pays("/pay%00", "k"), "201", "replay", 1},
		{"UTF-8", pays("/zahlé", "k"), "201", "replay", 1},
		{"invalid UTF-8", pays("/\xff", "k"), "201", "replay", 1},
		{"query", pays("/pay?a=1", "k"), "201", "replay", 1},
		{"other query", open(keyed("k")) + pays("/pay?a=1", "k"), "201, " + reused, "replay, " + reused, 1},
		{"query in another order", open(pays("/pay?a=1&b=2", "k")) + pays("/pay?b=2&a=1", "k"),
			"201, " + reused, "replay, " + reused, 1},
		{"empty query", open(keyed("k")) + pays("/pay?", "k"), "201, replay", "replay, replay", 1},
		{"query with a slash", open(keyed("k")) + pays("/pay?/pay", "k"), "201, " + reused, "replay, " + reused, 1},
		{"60 KiB", pays("/"+strings.Repeat("a", 60<<10), "k"), "201", "replay", 1},
		{"60 KiB with another end", open(pays("/"+strings.Repeat("a", 60<<10), "k")) +
			pays("/"+strings.Repeat("a", 60<<10)+"b", "k"), "201, 201", "replay, replay", 2},
		{"2 MiB", pays("/"+strings.Repeat("a", 2<<20), "k"), "431 net/http", "431 net/http", 0},
		{"bad escape", pays("/%zz", "k"), noRequest, noRequest, 0},
		{"no slash", pays("pay", "k"), noRequest, noRequest, 0},
		{"blank", pays("/p ay", "k"), noRequest, noRequest, 0},
		{"tab", pays("/p\tay", "k"), noRequest, noRequest, 0},
		{"NUL", pays("/p\x00ay", "k"), noRequest, noRequest, 0},
		{"none", pays("", "k"), noRequest, noRequest, 0},
	}},
	"version": {rows: []wireRow{
		{"1.0", old(keyed("k")), "201", "replay", 1},
		{"1.0 without Host", lacking(old(keyed("k")), hostLine), "201", "replay", 1},
		{"1.0 kept open", strings.Replace(old(keyed("k")), "close", "keep-alive", 1) + old(keyed("k")),
			"201, replay", "replay, replay", 1},
		{"1.0 and 1.1", open(keyed("k")) + old(keyed("k")), "201, replay", "replay, replay", 1},
		{"0.9", lined("POST /pay"), noRequest, noRequest, 0},
		{"0.9, with a number", lined("POST /pay HTTP/0.9"), "505 net/http", "505 net/http", 0},
		{"1.2", lined("POST /pay HTTP/1.2"), "201", "replay", 1},
		{"1.10", lined("POST /pay HTTP/1.10"), noRequest, noRequest, 0},
		{"2.0", lined("POST /pay HTTP/2.0"), "505 net/http", "505 net/http", 0},
		{"3.0", lined("POST /pay HTTP/3.0"), "505 net/http", "505 net/http", 0},
		{"lower case", lined("POST /pay http/1.1"), noRequest, noRequest, 0},
		{"another protocol", lined("POST /pay ICAP/1.1"), noRequest, noRequest, 0},
		{"TLS", "\x16\x03\x01\x00\x05hello\r\n\r\n", noRequest, noRequest, 0},
	}},
	"header": {rows: []wireRow{
		{"no Host", lacking(keyed("k"), hostLine), noRequest, noRequest, 0},
		{"empty Host", strings.Replace(keyed("k"), "example.com", "", 1), "201", "replay", 1},
		{"two Hosts", fields(keyIs+"k", hostLine[:len(hostLine)-2]), noRequest, noRequest, 0},
		{"Host with a slash", strings.Replace(keyed("k"), "example.com", "a/b", 1), noRequest, noRequest, 0},
		{"other Host", open(keyed("k")) + strings.Replace(keyed("k"), "example.com", "other.example", 1),
			"201, replay", "replay, replay", 1},
		{"bare LF", onlyLF(keyed("k")), "201", "replay", 1},
		{"bare LF and not", open(keyed("k")) + onlyLF(keyed("k")), "201, replay", "replay, replay", 1},
		{"bare LF before the key", fields("X-Other: a\n" + keyIs + "k"), "201", "replay", 1},
		{"bare CR between fields", fields("X-Other: a\r" + keyIs + "k"), noRequest, noRequest, 0},
		{"NUL in another field", fields(keyIs+"k", "X-Other: \x00"), noRequest, noRequest, 0},
		{"invalid UTF-8 in another field", fields(keyIs+"k", "X-Other: \xff"), "201", "replay", 1},
		{"obs-fold in another field", fields(keyIs+"k", "X-Other: a\r\n b"), "201", "replay", 1},
		{"obs-fold in the first line", strings.Replace(keyed("k"), "Host", " Host", 1), noRequest, noRequest, 0},
		{"field without a name", fields(keyIs+"k", ": a"), noRequest, noRequest, 0},
		{"other trace", open(fields(keyIs+"k", "Traceparent: a")) + fields(keyIs+"k", "Traceparent: b"),
			"201, replay", "replay, replay", 1},
		{"empty line before the request", "\r\n" + keyed("k"), noRequest, noRequest, 0},
		{"cut", "POST /pay HTTP/1.1\r\n" + hostLine + "Idempotency-K" + halfClose, noRequest, noRequest, 0},
		{"cut before it ends", "POST /pay HTTP/1.1\r\n" + hostLine + keyIs + "k\r\n" + halfClose, noRequest, noRequest, 0},
		{"slow", strings.Join(strings.SplitAfter(keyed("k"), "\r\n"), meanwhile), "201", "replay", 1},
		{"WebSocket", strings.Replace(fields(keyIs+"k", "Upgrade: websocket"), "close", "Upgrade, close", 1),
			"201", "replay", 1},
		{"h2c", strings.Replace(fields(keyIs+"k", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"), "close",
			"Upgrade, HTTP2-Settings, close", 1), "201", "replay", 1},
	}},
	"connection": {rows: []wireRow{
		{"nothing", halfClose, "", "", 0},
		{"a byte", "P" + halfClose, noRequest, noRequest, 0},
		{"ten in one", strings.Repeat(open(keyed("k")), 9) + keyed("k"),
			"201" + strings.Repeat(", replay", 9), "replay" + strings.Repeat(", replay", 9), 1},
		{"different ones in one", open(keyed("a")) + open(keyed("b")) + keyed("c"),
			"201, 201, 201", "replay, replay, replay", 3},
		{"empty lines between requests", open(keyed("k")) + "\r\n\r\n" + keyed("k"),
			"201, replay", "replay, replay", 1},
		{"refused key in between", open(keyed("a")) + open(keyed("")) + keyed("a"),
			"201, " + invalid + ", replay", "replay, " + invalid + ", replay", 1},
		{"reused key in between", open(keyed("a")) + open(pays("/pay?b", "a")) + keyed("a"),
			"201, " + reused + ", replay", "replay, " + reused + ", replay", 1},
		{"large body in between", open(framed(strings.Repeat("x", 1001), length+"1001")) + keyed("k"),
			tooLarge + ", 201", tooLarge + ", replay", 1},
		{"nothing follows a broken body", open(chunked("g\r\n")) + keyed("k"), unreadable, unreadable, 0},
		{"nothing follows a broken request", open(keyed("k")) + "POST\r\n\r\n" + keyed("a"),
			"201, " + noRequest, "replay, " + noRequest, 1},
		{"request in a body", framed(keyed("smuggled"), length+fmt.Sprint(len(keyed("smuggled")))), "201", "replay", 1},
		{"nothing follows close", keyed("k") + keyed("a"), "201", "replay", 1},
		{"closed after the request", keyed("k") + halfClose, "201", "replay", 1},
	}},
	"answer": {rows: []wireRow{
		{"none", pays("/abort", "k"), "", "", 2},
		{"shorter than announced", pays("/short", "k"), "201 cut", "201 cut", 2},
		{"failure", pays("/fails", "k"), "502", "502", 2},
		{"without a body", pays("/no-content", "k"), "204", "replay", 1},
		{"flushed", pays("/flushes", "k"), "200", "replay", 1},
		{"flushed to HTTP/1.0", old(pays("/flushes", "k")), "200", "replay", 1},
		{"with a trailer", pays("/trailer", "k"), "201", "replay", 1},
		{"after an early hint", pays("/early-hints", "k"), "103, 201", "replay", 1},
		{"too large to be kept", pays("/large", "k"), "201", "409 not-replayable", 1},
		{"hijacked", pays("/hijacks", "k"), "426", "replay", 1},
		{"another protocol", pays("/switches", "k"), "101", "409 not-replayable", 1},
	}},
	"required": {opts: idempotency.Options{Required: true}, rows: []wireRow{
		{"no key", fields(), "400 key-missing", "400 key-missing", 0},
		{"key", keyed("k"), "201", "replay", 1},
		{"empty key", keyed(""), invalid, invalid, 0},
		{"name with an underscore", fields("Idempotency_Key: k"), "400 key-missing", "400 key-missing", 0},
		{"in the trailer only", bare("POST /pay HTTP/1.1", isChunked) + "1\r\nx\r\n0\r\n" + keyIs + "k\r\n\r\n",
			"400 key-missing", "400 key-missing", 0},
		{"no key, and too large a body", bare("POST /pay HTTP/1.1", length+"1001", "Expect: 100-continue"),
			"400 key-missing", "400 key-missing", 0},
		{"GET needs none", bare("GET /pay HTTP/1.1"), "201", "201", 2},
	}},
	"names": {opts: idempotency.Options{Headers: []string{"Idempotency-Key", "X-Request-Id"}}, rows: []wireRow{
		{"the second", fields("x-request-id: k"), "201", "replay", 1},
		{"one after the other", open(keyed("k")) + fields("X-Request-Id: \"k\""), "201, replay", "replay, replay", 1},
		{"both", fields(keyIs+"k", "X-Request-Id: k"), "201", "replay", 1},
		{"both, different", fields(keyIs+"a", "X-Request-Id: b"), invalid, invalid, 0},
		{"both, one empty", fields(keyIs+"a", "X-Request-Id:"), invalid, invalid, 0},
	}},
	"JSON": {opts: idempotency.Options{Fingerprint: fingerprint.JSON}, rows: []wireRow{
		{"other order", open(sendsJSON(`{"a":1,"b":2}`)) + sendsJSON(`{ "b":2, "a":1 }`), "201, replay", "replay, replay", 1},
		{"other value", open(sendsJSON(`{"a":1}`)) + sendsJSON(`{"a":2}`), "201, " + reused, "replay, " + reused, 1},
		{"a name twice", sendsJSON(`{"a":1,"a":2}`), unreadable, unreadable, 0},
		{"cut", sendsJSON(`{"a":1`), unreadable, unreadable, 0},
		{"two values", sendsJSON(`1 2`), unreadable, unreadable, 0},
		{"invalid UTF-8", sendsJSON("\"\xff\""), unreadable, unreadable, 0},
		{"deep", sendsJSON(strings.Repeat("[", 101) + strings.Repeat("]", 101)), unreadable, unreadable, 0},
		{"number out of range", sendsJSON("1e400"), unreadable, unreadable, 0},
		{"none", sendsJSON(""), "201", "replay", 1},
		{"other type", framed("{", length+"1", "Content-Type: text/plain"), "201", "replay", 1},
	}},
	"multipart": {opts: idempotency.Options{Fingerprint: fingerprint.Multipart}, rows: []wireRow{
		{"other boundary", open(sendsForm("a", "a", "x")) + sendsForm("b", "b", "x"), "201, replay", "replay, replay", 1},
		{"other value", open(sendsForm("a", "a", "x")) + sendsForm("a", "a", "y"), "201, " + reused, "replay, " + reused, 1},
		{"wrong boundary", sendsForm("a", "b", "x"), unreadable, unreadable, 0},
		{"no boundary", framed("x", length+"1", "Content-Type: multipart/form-data"), unreadable, unreadable, 0},
		{"ends early", framed("--b\r\n\r\nx", length+"8", "Content-Type: multipart/form-data; boundary=b"),
			unreadable, unreadable, 0},
		{"type that is none", framed("x", length+"1", "Content-Type: multipart/;;"), unreadable, unreadable, 0},
	}},
}
