// Package emulated starts services that have no server of their own to run.
package emulated

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/stretchr/testify/require"
	"github.com/truora/minidyn/server"

	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// DynamoDB starts minidyn with a table of records, for the duration of the test, and returns its address.
func DynamoDB(t testing.TB) (addr string) {
	t.Helper()
	listening := servertest.DynamoDB(server.NewServer())
	t.Cleanup(listening.Close)
	addr = listening.Listener.Addr().String()
	require.NoError(t, dynamodbstore.CreateTable(t.Context(), DynamoDBClient(addr), dynamodbstore.Options{}))
	return addr
}

// DynamoDBClient returns a client as programs have it, with connections of its own.
func DynamoDBClient(addr string) *dynamodb.Client {
	return dynamodb.New(options("http://" + addr))
}

// DynamoDBInside returns a client of a minidyn of its own, which it reaches without a network.
func DynamoDBInside(t testing.TB) *dynamodb.Client {
	t.Helper()
	opts := options("http://dynamodb.invalid")
	opts.HTTPClient = inside{servertest.DynamoDBHandler(server.NewServer())}
	client := dynamodb.New(opts)
	require.NoError(t, dynamodbstore.CreateTable(t.Context(), client, dynamodbstore.Options{}))
	return client
}

func options(url string) dynamodb.Options {
	return dynamodb.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(url),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	}
}

type inside struct{ http.Handler }

func (i inside) Do(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	i.ServeHTTP(w, r)
	return w.Result(), nil
}
