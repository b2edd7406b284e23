package idempotency
import "errors"
var ErrUserQuota = errors.New("idempotency: user's share of the store used up")
