package idempotency

import (
	"context"
	"encoding/json"
	"fmt"
)

// DoJSON is [Runner.Do] for work whose result is a value. The value is kept as JSON, and what DoJSON returns is read
// from there, the first time as well as every further one.
//
// A result that has no form in JSON is an error, but it ends the operation like any other result: work is not done
// again, and the next call returns [ErrNotReplayable].
func DoJSON[T any](
	ctx context.Context, r *Runner, key Key, payload []byte, work func(context.Context) (T, error),
) (result T, replayed bool, err error) {
	var unfit error
	resp, replayed, err := r.Do(ctx, key, payload, func(ctx context.Context) (Response, error) {
		value, err := work(ctx)
		if err != nil {
			return Response{}, err
		}
		body, err := json.Marshal(value)
		unfit = err
		return Response{Body: body, Omitted: err != nil}, nil
	})
	if err == nil {
		err = unfit
	}
	if err != nil {
		return result, replayed, err
	}
	if err := json.Unmarshal(resp.Body, &result); err != nil {
		return result, replayed, fmt.Errorf("%w: %w", ErrRecordInvalid, err)
	}
	return result, replayed, nil
}
