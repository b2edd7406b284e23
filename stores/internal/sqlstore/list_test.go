package sqlstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// A listing is repeated until Each has got a record. After that, every error is final.
func TestRepeatList(t *testing.T) {
	t.Parallel()
	broken := errors.New("the connection is broken")
	three := func(step func() error) (err error) {
		for range 3 {
			if err = step(); err == nil {
				return nil
			}
		}
		return err
	}
	for name, test := range map[string]struct {
		failsBefore, failsAfter int // tries that fail before and after the record
		wantTries, wantRecords  int
		wantErr                 error
	}{
		"no failure":        {0, 0, 1, 1, nil},
		"before the record": {2, 0, 3, 1, nil},
		"always":            {3, 0, 3, 0, broken},
		"after the record":  {0, 1, 1, 1, broken},
		"before and after":  {1, 1, 2, 1, broken},
	} {
		t.Run(name, func(t *testing.T) {
			tries, records := 0, 0
			request := idempotency.ListRequest{Each: func(idempotency.Entry) error {
				records++
				return nil
			}}
			_, err := sqlstore.RepeatList(request, three, func(r idempotency.ListRequest) (idempotency.Listing, error) {
				tries++
				if tries <= test.failsBefore {
					return idempotency.Listing{}, broken
				}
				require.NoError(t, r.Each(idempotency.Entry{}))
				if tries <= test.failsBefore+test.failsAfter {
					return idempotency.Listing{}, broken
				}
				return idempotency.Listing{}, nil
			})
			require.Equal(t, test.wantErr, err)
			require.Equal(t, test.wantTries, tries)
			require.Equal(t, test.wantRecords, records)
		})
	}
	tries := 0
	_, err := sqlstore.RepeatList(idempotency.ListRequest{}, three, func(idempotency.ListRequest) (idempotency.Listing, error) {
		tries++
		return idempotency.Listing{}, broken
	})
	require.Equal(t, broken, err)
	require.Equal(t, 3, tries, "a page can be read again")
}

func TestMicrosSince(t *testing.T) {
	t.Parallel()
	for then, want := range map[time.Time]int64{
		time.Unix(1, 0): 1_000_000, time.Unix(1, 1): 1_000_001, time.Unix(1, 1000): 1_000_001, time.Unix(1, 1001): 1_000_002,
		time.Unix(-1, 1): -999_999, time.Unix(-1, 0): -1_000_000,
	} {
		require.Equal(t, want, sqlstore.MicrosSince(then), then)
	}
}
