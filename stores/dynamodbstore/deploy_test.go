package dynamodbstore_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The files in deploy have the table that CreateTable makes, and permissions for the requests that a service makes.
func TestFilesToDeploy(t *testing.T) {
	t.Parallel()
	for file, parts := range map[string][]string{
		"table.yaml": {"TableName: idempotency_records", "{AttributeName: operation, AttributeType: S}", "{AttributeName: remove_at, Enabled: true}"},
		"table.tf":   {`"idempotency_records"`, `= "operation"`, `type = "S"`, `attribute_name = "remove_at"`},
	} {
		text, err := os.ReadFile("deploy/" + file)
		require.NoError(t, err)
		for _, part := range parts {
			require.Contains(t, string(text), part)
		}
	}

	text, err := os.ReadFile("deploy/service.json")
	require.NoError(t, err)
	var policy struct{ Action []string }
	require.NoError(t, json.Unmarshal(text, &policy))
	store, s := newStore(t)
	_ = store.Check(context.Background())
	completeKey(t, store, "1")
	requireReplay(t, store, "1", answer)
	calls := strings.Fields(s.takeCalls())
	require.NotEmpty(t, calls)
	for _, call := range calls {
		require.Contains(t, policy.Action, "dynamodb:"+call)
	}
	for _, action := range policy.Action {
		require.Contains(t, calls, strings.TrimPrefix(action, "dynamodb:"))
	}
}
