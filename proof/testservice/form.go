package testservice

import (
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"

	"github.com/idempotency-go/idempotency"
)

var (
	bareKey   = regexp.MustCompile(`^[!#-+\-.-:<-\[\]-~]{1,255}$`)
	quotedKey = regexp.MustCompile(`^"(?:[!#-\[\]-~]|\\["\\])+"$`)
	escapes   = regexp.MustCompile(`\\(["\\])`)
)

// ParseKeyByPattern returns the key in a line of the header. To be independent of the code under test,
// ParseKeyByPattern uses regular expressions for the form in RFC 9651.
func ParseKeyByPattern(line string) (id string, ok bool) {
	if bareKey.MatchString(line) {
		return line, true
	}
	if quotedKey.MatchString(line) {
		id = escapes.ReplaceAllString(line[1:len(line)-1], "$1")
	}
	if id == "" || len(id) > 255 {
		return "", false
	}
	return id, true
}

var (
	responsePattern = regexp.MustCompile(
		`^response/1 crc=([0-9a-f]{8}) ([+-]?[0-9]+) header=([+-]?[0-9]+) trailer=([+-]?[0-9]+) ` +
			`body=(omitted|0|[1-9][0-9]*)(?: note=([!-~]|[!-~][ -~]{0,253}[!-~]))?\n`)

	// FieldsPattern matches the form of [idempotency.Fields].
	FieldsPattern = regexp.MustCompile(`^(?:[ -~]+\n)*$`)
)

// ParseResponseByPattern decodes a stored response. To be independent of the code under test, ParseResponseByPattern
// uses a regular expression for the documented form.
func ParseResponseByPattern(data []byte) (resp idempotency.Response, ok bool) {
	m := responsePattern.FindSubmatch(data)
	if m == nil || fmt.Sprintf("%08x", crc32.Checksum(data[len("response/1 crc=01234567"):], castagnoli)) != string(m[1]) {
		return resp, false
	}
	var numbers [3]int
	for i := range numbers {
		n, err := strconv.Atoi(string(m[2+i]))
		if err != nil || n < 0 {
			return resp, false
		}
		numbers[i] = n
	}
	rest, header, trailer := data[len(m[0]):], numbers[1], numbers[2]
	if header > len(rest) || trailer > len(rest)-header || header+trailer == len(rest) || rest[header+trailer] != '\n' {
		return resp, false
	}
	body := rest[header+trailer+1:]
	resp = idempotency.Response{
		Status: numbers[0], Header: idempotency.Fields(rest[:header]), Trailer: idempotency.Fields(rest[header:][:trailer]),
		Note: string(m[6]),
	}
	if resp.Omitted = string(m[5]) == "omitted"; !resp.Omitted {
		if n, err := strconv.Atoi(string(m[5])); err != nil || n != len(body) {
			return resp, false
		}
		resp.Body = body
	}
	return resp, FieldsPattern.MatchString(string(resp.Header)) && FieldsPattern.MatchString(string(resp.Trailer))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var escapedByte = regexp.MustCompile(`\\x[0-9a-f]{2}`)

// UnescapeField returns a part of [idempotency.Fields] in the form of a header.
func UnescapeField(s string) string {
	return escapedByte.ReplaceAllStringFunc(s, func(sequence string) string {
		b, _ := strconv.ParseUint(sequence[2:], 16, 8)
		return string([]byte{byte(b)})
	})
}
