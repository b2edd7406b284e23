package main

import (
	"io"
	"log"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/dynamodbstore"
)

func main() {
	store := dynamodbstore.New(dynamodb.New(dynamodb.Options{}), dynamodbstore.Options{})
	idem, err := idempotency.New(store, user, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("localhost:8080", idem.Handler(http.HandlerFunc(pay))))
}

func user(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }

func pay(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "paid") }
