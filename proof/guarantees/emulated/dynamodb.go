// Package emulated starts emulators of services whose servers the tests cannot run.
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

// DynamoDBClient returns a client with connections to addr, as a program has.
func DynamoDBClient(addr string) *dynamodb.Client {
	return dynamodb.New(clientOptions("http://" + addr))
}

// DynamoDBInside starts a new minidyn with a table of records, and returns a client that calls minidyn without a network.
func DynamoDBInside(t testing.TB) *dynamodb.Client {
	t.Helper()
	opts := clientOptions("http://dynamodb.invalid")
	opts.HTTPClient = handlerClient{servertest.DynamoDBHandler(server.NewServer())}
	client := dynamodb.New(opts)
	require.NoError(t, dynamodbstore.CreateTable(t.Context(), client, dynamodbstore.Options{}))
	return client
}

func clientOptions(url string) dynamodb.Options {
	return dynamodb.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(url),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	}
}

// handlerClient is an HTTP client that calls the handler directly.
type handlerClient struct{ http.Handler }

func (c handlerClient) Do(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w.Result(), nil
}
