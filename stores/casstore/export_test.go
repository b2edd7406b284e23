package casstore

import "time"

// SetTime gives the store another clock.
func (s *Store) SetTime(now func() time.Time) { s.now = now }

// Decode decodes a value, and encodes it again.
func Decode(data []byte) ([]byte, error) {
	r, err := decodeRecord(data)
	return encodeRecord(&r), err
}
