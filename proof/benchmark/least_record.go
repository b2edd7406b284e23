package benchmark

import "encoding/binary"

// A record in a store on a server is a state, a token and a fingerprint. A completed record continues with the status, the
// number of header fields, the fields, each after two lengths, and the body.
const (
	leastRunning, leastDone = 'R', 'D'

	leastOwnerSize = 1 + 16              // bytes of state and token
	leastHeadSize  = leastOwnerSize + 32 // bytes of state, token and fingerprint
)

// encodeClaim encodes the record of a claim.
func (c *leastCall) encodeClaim() {
	c.encodedRecord = append(append(append(c.encodedRecord[:0], leastRunning), c.ownerToken[:]...), c.fingerprint[:]...)
}

// decodeAnswer decodes an answer, sets the header fields in the response writer, and returns the body.
func (c *leastCall) decodeAnswer(s string) (body string) {
	h := c.responseWriter.Header()
	c.storedAnswer.status = int(s[0])<<8 | int(s[1])
	values := make([]string, s[2])
	s = s[3:]
	for i := range values {
		name, value := int(s[0]), int(s[1])<<8|int(s[2])
		s = s[3:]
		values[i] = s[name:][:value]
		h[s[:name]] = values[i : i+1 : i+1]
		s = s[name+value:]
	}
	return s
}

// encodeAnswer appends the answer to the head of the record.
func (c *leastCall) encodeAnswer() {
	c.encodedRecord[0] = leastDone
	p := binary.BigEndian.AppendUint16(c.encodedRecord, uint16(c.newAnswer.status))
	p = append(p, byte(len(c.newAnswer.headerFields)))
	for _, field := range c.newAnswer.headerFields {
		p = append(p, byte(len(field.name)))
		p = binary.BigEndian.AppendUint16(p, uint16(len(field.values[0])))
		p = append(append(p, field.name...), field.values[0]...)
	}
	c.encodedRecord = append(p, c.newAnswer.body...)
}
