package main_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"
	emulator "github.com/truora/minidyn/server"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// Flags and variables name a table. An error about a missing or wrong setting is one line.
func TestTableOfDynamoDB(t *testing.T) {
	t.Parallel()
	b := newDynamoDB(t)
	completeRecord(t, b.openStore(t), keyOfAlice, answer)
	_, parameters, _ := strings.Cut(b.url(), "?")
	_, endpoint, _ := strings.Cut(b.url(), "endpoint=")
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"__type":"com.amazon.coral.service#UnrecognizedClientException",` +
			`"message":"The security token included in the request is invalid: ` + r.Header.Get("X-Amz-Security-Token") + `"}`))
	}))
	t.Cleanup(refusing.Close)
	anywhere := append([]string{"AWS_REGION=eu-central-1", "AWS_ENDPOINT_URL_DYNAMODB=" + endpoint}, awsVariables...)
	for name, test := range map[string]struct {
		environment, args []string
		wantStatus        int
		wantOutput        string
	}{
		"variable":           {b.environment, nil, 0, "201"},
		"flag":               {awsVariables, []string{"--store", b.url()}, 0, "201"},
		"default table":      {awsVariables, []string{"--store", "dynamodb://?" + parameters}, 0, "201"},
		"variables of AWS":   {anywhere, []string{"--store", "dynamodb"}, 0, "201"},
		"flag for the table": {anywhere, []string{"--store", "dynamodb", "--table", "idempotency_records"}, 0, "201"},

		"no region": {awsVariables, []string{"--store", "dynamodb://records"}, 2,
			"which region? want dynamodb://table?region="},
		"unknown parameter": {awsVariables, []string{"--store", "dynamodb://records?regoin=x"}, 2, `parameter "regoin" is unknown`},
		"a path":            {awsVariables, []string{"--store", "dynamodb://eu-central-1/records"}, 2, "want dynamodb://table?region="},
		"a key in the URL": {append([]string{"DATABASE_URL=dynamodb://id:s3cret@records?" + parameters}, awsVariables...), nil, 2,
			"without credentials"},
		"a key in a flag": {nil, []string{"--store", "dynamodb://id:s3cret@records?" + parameters}, 2, "--store has a password"},
		"no such name":    {awsVariables, []string{"--store", "dynamodb://a?" + parameters}, 3, `Table is "a"`},
		"no table":        {awsVariables, []string{"--store", "dynamodb://none?" + parameters}, 3, "there is no table of records"},
		"no credentials": {[]string{"AWS_EC2_METADATA_DISABLED=true"}, []string{"--store", b.url()}, 3,
			"DynamoDB: no credentials: "},
		"another kind of URL": {append([]string{"DATABASE_URL=mysql://root@host/db"}, awsVariables...), []string{"--store", "dynamodb"},
			2, "is of another kind"},
		"wrong credentials": {append([]string{"AWS_SESSION_TOKEN=t0ken"}, awsVariables...),
			[]string{"--store", "dynamodb://records?region=eu-central-1&endpoint=" + refusing.URL}, 3, "UnrecognizedClientException"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, args := range [][]string{commandForAlice("show"), {"check"}} {
				got := runProcess(t, test.environment, append(args, test.args...)...)
				said := got.stdout + got.stderr
				require.NotContains(t, said, "s3cret")
				require.NotContains(t, said, "t0ken")
				require.LessOrEqual(t, strings.Count(got.stderr, "\n"), 1, said)
				if test.wantStatus == 0 && args[0] == "check" {
					require.Equal(t, 1, got.status, said)
					require.Contains(t, said, "TimeToLive is DISABLED")
					continue
				}
				require.Equal(t, test.wantStatus, got.status, said)
				require.Contains(t, said, test.wantOutput)
			}
		})
	}
}

// newDynamoDB returns an emulated service.
func newDynamoDB(t testing.TB) backend {
	t.Helper()
	service := servertest.DynamoDB(emulator.NewServer())
	t.Cleanup(service.Close)
	client, opts := newDynamoDBClient(service.URL), dynamodbstore.Options{Skew: time.Millisecond}
	require.NoError(t, dynamodbstore.CreateTable(t.Context(), client, opts))
	return backend{
		kind: "dynamodb",
		environment: append([]string{"DATABASE_URL=dynamodb://idempotency_records?region=eu-central-1&endpoint=" + service.URL},
			awsVariables...),
		openStore: func(testing.TB) idempotency.Store { return dynamodbstore.New(client, opts) },
		damageRecord: func(t testing.TB) {
			_, err := client.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
				TableName: aws.String("idempotency_records"), UpdateExpression: aws.String("SET attempt = :none"),
				Key: map[string]types.AttributeValue{
					"operation": &types.AttributeValueMemberS{Value: keyOfAlice.OperationID().String()},
				},
				ExpressionAttributeValues: map[string]types.AttributeValue{":none": &types.AttributeValueMemberN{Value: "0"}},
			})
			require.NoError(t, err)
		},
	}
}

// awsVariables are credentials, which the emulator does not look at.
var awsVariables = []string{"AWS_ACCESS_KEY_ID=id", "AWS_SECRET_ACCESS_KEY=s3cret"}

// newDynamoDBClient returns a client of the service at url.
func newDynamoDBClient(url string) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(url),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "s3cret"}, nil
		}),
	})
}
