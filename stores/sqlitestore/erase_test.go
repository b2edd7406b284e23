package sqlitestore_test

import (
	"testing"

	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

func TestEraseUser(t *testing.T) {
	t.Parallel()
	testservice.RequireErasure(t, openStore(t, newPath(t), sqlitestore.Options{}))
}
