package sqlitestore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// An answer of 400 or more is stored without the changes of the handler. KeepEffects commits them with it.
func ExampleKeepEffects() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "coupons.db")
	store, err := sqlitestore.OpenTx(context.Background(), path, sqlitestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	db := openCoupons(path)
	defer db.Close()
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{Required: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, path := range []string{"/forget", "/count"} {
		r := httptest.NewRequest(http.MethodPost, path, nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		idem.Handler(http.HandlerFunc(redeem)).ServeHTTP(w, r)
		var tries int
		err := db.QueryRow("SELECT tries FROM coupons").Scan(&tries)
		fmt.Println(w.Code, "tries:", tries, err)
	}
	// Output:
	// 422 tries: 0 <nil>
	// 422 tries: 1 <nil>
}

// redeem refuses the coupon. If the try counts, its change is kept.
func redeem(w http.ResponseWriter, r *http.Request) {
	tx, _ := sqlitestore.Tx(r.Context())
	if _, err := tx.ExecContext(r.Context(), "UPDATE coupons SET tries = tries + 1"); err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	if r.URL.Path == "/count" {
		sqlitestore.KeepEffects(r.Context())
	}
	http.Error(w, "used up", http.StatusUnprocessableEntity)
}

func openCoupons(path string) *sql.DB {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := db.Exec("CREATE TABLE coupons (tries INTEGER); INSERT INTO coupons VALUES (0)"); err != nil {
		log.Fatal(err)
	}
	return db
}
