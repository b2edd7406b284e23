package idempotency

import "errors"

var (
	ErrUserQuota    = errors.New("idempotency: user's share of the store used up")
)

type buffer0 = buffer

func (b buffer) reuse() buffer {
	if cap(b.b) > maxPooled {
		return buffer{}
	}
	return buffer{b.b[:0]}
}
