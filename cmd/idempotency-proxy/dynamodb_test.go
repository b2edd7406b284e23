package main_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/stretchr/testify/require"
	"github.com/truora/minidyn/server"

	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// awsVariables are credentials, which the emulator ignores.
var awsVariables = []string{"AWS_ACCESS_KEY_ID=id", "AWS_SECRET_ACCESS_KEY=topsecret"}

// startDynamoDB starts an emulated service with the default table.
func startDynamoDB(t testing.TB) *httptest.Server {
	t.Helper()
	service := servertest.DynamoDB(server.NewServer())
	t.Cleanup(service.Close)
	client := dynamodb.New(dynamodb.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(service.URL), HTTPClient: service.Client(),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "topsecret"}, nil
		}),
	})
	require.NoError(t, dynamodbstore.CreateTable(t.Context(), client, dynamodbstore.Options{}))
	return service
}

// The proxy does not start without a table, a region or credentials. Afterwards, /readyz says whether the service is
// reachable.
func TestDynamoDB(t *testing.T) {
	t.Parallel()
	service := startDynamoDB(t)
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"__type":"com.amazon.coral.service#UnrecognizedClientException",` +
			`"message":"The security token is invalid"}`))
	}))
	t.Cleanup(refusing.Close)
	none := []string{"AWS_EC2_METADATA_DISABLED=true", "HOME=/nonexistent", "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY="}
	for name, test := range map[string]struct {
		environment []string
		storeURL    string
		wantErr     string
	}{
		"no region": {awsVariables, "dynamodb://records", "which region? want dynamodb://table?region="},
		"no table": {awsVariables, "dynamodb://none?region=eu-central-1&endpoint=" + service.URL,
			"there is no table of records"},
		"no such name":      {awsVariables, "dynamodb://a?region=eu-central-1", `Table is "a"`},
		"no credentials":    {none, "dynamodb://?region=eu-central-1", "no credentials: "},
		"wrong credentials": {awsVariables, "dynamodb://?region=eu-central-1&endpoint=" + refusing.URL, "UnrecognizedClientException"},
		"out of reach":      {awsVariables, "dynamodb://?region=eu-central-1&endpoint=http://127.0.0.1:1", "refused"},
		"unknown parameter": {awsVariables, "dynamodb://records?table=x", `parameter "table" is unknown`},
		"another form":      {awsVariables, "dynamodb:records", "want dynamodb://table"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append(userHeaderFlags, "-upstream", "http://127.0.0.1:1", "-listen", "127.0.0.1:0", "-store", test.storeURL)
			status, _, stderr := runProgram(t, test.environment, args...)
			require.Equal(t, 1, status, stderr)
			require.Len(t, errorLines(stderr), 1, stderr)
			require.Contains(t, stderr, test.wantErr)
			require.False(t, strings.Contains(stderr, "topsecret"))
		})
	}
	t.Run("killed and started again", func(t *testing.T) {
		t.Parallel()
		service, upstream := startDynamoDB(t), startService(t, answerCreated)
		args := append(userHeaderFlags, "-ignore-host", "-store", "dynamodb://?region=eu-central-1&endpoint="+service.URL)
		p := startProxy(t, upstream.URL, args...)
		first := p.post("/", "x", withKey("k"), withUser("alice"))
		require.Equal(t, 201, first.status, first)
		p.kill()
		p = startProxy(t, upstream.URL, args...)
		again := p.post("/", "x", withKey("k"), withUser("alice"))
		require.True(t, again.replayed, again)
		require.Equal(t, first.body, again.body)
		require.Equal(t, 1, upstream.requestCount())

		require.Contains(t, p.loggedLines(), "TimeToLive is DISABLED", "as the emulator deletes nothing")
		require.Equal(t, 200, getURL(t, p.adminURL+"/readyz").status)
		service.Close()
		require.Equal(t, 503, getURL(t, p.adminURL+"/readyz").status)
		require.Equal(t, "store-unavailable", p.post("/", "x", withKey("k"), withUser("alice")).problemCode())
		require.Equal(t, 1, upstream.requestCount())
	})
}
