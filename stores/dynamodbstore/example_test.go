package dynamodbstore_test

import (
	"context"
	"log"
	"net/http"
	"os"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

func Example() {
	ctx := context.Background()
	// A service usually gets cfg from config.LoadDefaultConfig of the SDK.
	cfg := aws.Config{Region: os.Getenv("AWS_REGION")}
	client := dynamodb.NewFromConfig(cfg)
	if err := dynamodbstore.CreateTable(ctx, client, dynamodbstore.Options{}); err != nil {
		log.Fatal(err)
	}
	store := dynamodbstore.New(client, dynamodbstore.Options{})
	if err := store.Check(ctx); err != nil {
		log.Print(err) // for example a global table with eventual consistency
	}

	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	idem, err := idempotency.New(store, user, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /payments", idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		log.Print("charging the card")
		w.WriteHeader(http.StatusCreated)
	})))
	log.Fatal(http.ListenAndServe("localhost:8080", nil))
}

// A wrapper of the client, for example to count the units that claims and answers consume.
func ExampleClient() {
	client := &metered{Client: dynamodb.NewFromConfig(aws.Config{Region: os.Getenv("AWS_REGION")})}
	store := dynamodbstore.New(client, dynamodbstore.Options{})
	if err := store.Check(context.Background()); err != nil {
		log.Print(err)
	}
	log.Print(client.units.Load(), " units")
}

type metered struct {
	dynamodbstore.Client
	units atomic.Int64
}

func (m *metered) UpdateItem(
	ctx context.Context, in *dynamodb.UpdateItemInput, fns ...func(*dynamodb.Options),
) (*dynamodb.UpdateItemOutput, error) {
	in.ReturnConsumedCapacity = types.ReturnConsumedCapacityTotal
	out, err := m.Client.UpdateItem(ctx, in, fns...)
	if err == nil && out.ConsumedCapacity != nil {
		m.units.Add(int64(aws.ToFloat64(out.ConsumedCapacity.CapacityUnits)))
	}
	return out, err
}
