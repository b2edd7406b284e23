package benchmark

import "encoding/binary"

// A record in a store on a server is a state, a token, a fingerprint and, once there is an answer, its status, the number
// of its fields, each of them behind two lengths, and its body.
const (
	leastRunning, leastDone = 'R', 'D'

	leastOwner = 1 + 16          // bytes of state and token
	leastHead  = leastOwner + 32 // and of the fingerprint
)

// begin makes the record of a claim.
func (c *leastCall) begin() {
	c.record = append(append(append(c.record[:0], leastRunning), c.token[:]...), c.fingerprint[:]...)
}

// decode reads the head of an answer, puts its fields where they are to be sent, and returns what is behind.
func (c *leastCall) decode(s string) (rest string) {
	h := c.w.Header()
	c.found.status = int(s[0])<<8 | int(s[1])
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

// encode appends the answer to the head of the record.
func (c *leastCall) encode() {
	c.record[0] = leastDone
	p := binary.BigEndian.AppendUint16(c.record, uint16(c.made.status))
	p = append(p, byte(len(c.made.fields)))
	for _, field := range c.made.fields {
		p = append(p, byte(len(field.name)))
		p = binary.BigEndian.AppendUint16(p, uint16(len(field.values[0])))
		p = append(append(p, field.name...), field.values[0]...)
	}
	c.record = append(p, c.made.body...)
}
