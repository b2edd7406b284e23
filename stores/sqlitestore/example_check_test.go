package sqlitestore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// Check reports a setting that weakens the promise: here, that a loss of power may cost the last records.
func ExampleStore_Check() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	opts := sqlitestore.Options{Synchronous: sqlitestore.Normal}
	store, err := sqlitestore.Open(context.Background(), filepath.Join(dir, "idempotency.db"), opts)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	err = store.Check(context.Background())
	if unsafe, ok := errors.AsType[*idempotency.UnsafeSetting](err); ok {
		fmt.Printf("%s is %s: %s\n", unsafe.Setting, unsafe.Value, unsafe.Risk)
	}
	// Output: synchronous is NORMAL: a power failure loses the last records, so their operations run again
}
