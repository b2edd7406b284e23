package dynamodbstore_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// checkFindings returns the unsafe settings that Check reports, and the other findings.
func checkFindings(t *testing.T, store *dynamodbstore.Store) (unsafe map[string]string, others []error) {
	t.Helper()
	unsafe = make(map[string]string)
	for _, err := range idempotency.Findings(store.Check(t.Context())) {
		if finding, ok := errors.AsType[*idempotency.UnsafeSetting](err); ok {
			require.NotEmpty(t, finding.Node)
			require.NotEmpty(t, finding.Risk)
			unsafe[finding.Setting] = finding.Value
			continue
		}
		others = append(others, err)
	}
	return unsafe, others
}

type object = map[string]any

// tableReply is a reply to DescribeTable.
func tableReply(key, kind, status string, more object) object {
	all := object{
		"TableName": tableName, "TableStatus": status, "KeySchema": []object{{"AttributeName": key, "KeyType": "HASH"}},
		"AttributeDefinitions": []object{{"AttributeName": key, "AttributeType": kind}},
	}
	for name, value := range more {
		all[name] = value
	}
	return object{"Table": all}
}

func ttlReply(name, status string) object {
	return object{"TimeToLiveDescription": object{"AttributeName": name, "TimeToLiveStatus": status}}
}

// The replies follow the documentation of the service, because the emulator cannot be configured.
func TestCheck(t *testing.T) {
	t.Parallel()
	replicas := []object{{"RegionName": "eu-west-1", "ReplicaStatus": "ACTIVE"}}
	sound := tableReply("operation", "S", "ACTIVE", nil)
	for name, tt := range map[string]struct {
		table, ttl any
		want       map[string]string
		other      string
	}{
		"sound":          {table: sound},
		"being updated":  {table: tableReply("operation", "S", "UPDATING", nil)},
		"being made":     {table: tableReply("operation", "S", "CREATING", nil), other: "the table is CREATING"},
		"being deleted":  {table: tableReply("operation", "S", "DELETING", nil), other: "the table is DELETING"},
		"another key":    {table: tableReply("id", "S", "ACTIVE", nil), other: "the partition key operation, without a sort key"},
		"binary key":     {table: tableReply("operation", "B", "ACTIVE", nil), other: "is of type B, not S"},
		"sort key, too":  {table: withSortKey(), other: "the partition key operation, without a sort key"},
		"TTL is off":     {table: sound, ttl: ttlReply("", "DISABLED"), want: map[string]string{"TimeToLive": "DISABLED"}},
		"TTL goes off":   {table: sound, ttl: ttlReply("remove_at", "DISABLING"), want: map[string]string{"TimeToLive": "DISABLED"}},
		"TTL is another": {table: sound, ttl: ttlReply("expires", "ENABLED"), want: map[string]string{"TimeToLive": "expires"}},
		"TTL comes":      {table: sound, ttl: ttlReply("remove_at", "ENABLING")},
		"global table": {table: tableReply("operation", "S", "ACTIVE", object{"Replicas": replicas}),
			want: map[string]string{"MultiRegionConsistency": "EVENTUAL"}},
		"global table, strongly consistent": {
			table: tableReply("operation", "S", "ACTIVE", object{"Replicas": replicas, "MultiRegionConsistency": "STRONG"}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.setDateAhead(0)
			s.setReply("DescribeTable", tt.table)
			if tt.ttl != nil {
				s.setReply("DescribeTimeToLive", tt.ttl)
			}
			unsafe, others := checkFindings(t, dynamodbstore.New(s.client, dynamodbstore.Options{}))
			if tt.want == nil {
				tt.want = map[string]string{}
			}
			require.Equal(t, tt.want, unsafe)
			if tt.other == "" {
				require.Empty(t, others)
				return
			}
			require.Len(t, others, 1)
			require.ErrorContains(t, others[0], tt.other)
		})
	}
}

func withSortKey() object {
	table := tableReply("operation", "S", "ACTIVE", nil)["Table"].(object)
	table["KeySchema"] = append(table["KeySchema"].([]object), object{"AttributeName": "at", "KeyType": "RANGE"})
	return object{"Table": table}
}

// Check names missing permissions, and settings that the service does not report.
func TestCheckOfPermissions(t *testing.T) {
	t.Parallel()
	denied := failWith(400, "AccessDeniedException")
	for _, call := range []string{"GetItem", "UpdateItem"} {
		s := newService(t)
		s.setDateAhead(0)
		s.injectFaults(call, denied)
		unsafe, others := checkFindings(t, dynamodbstore.New(s.client, dynamodbstore.Options{}))
		require.Empty(t, unsafe)
		require.Len(t, others, 1)
		require.ErrorContains(t, others[0], "dynamodbstore: check: operation error DynamoDB: "+call)
	}
	for _, call := range []string{"DescribeTable", "DescribeTimeToLive"} {
		s := newService(t)
		s.setDateAhead(0)
		s.injectFaults(call, denied)
		unsafe, others := checkFindings(t, dynamodbstore.New(s.client, dynamodbstore.Options{}))
		require.Empty(t, others)
		require.Equal(t, map[string]string{"dynamodb:" + call: "denied"}, unsafe)
	}
	unsafe, others := checkFindings(t, dynamodbstore.New(newTable(t), testOptions))
	require.Empty(t, others)
	require.Equal(t, map[string]string{"DescribeTable": "missing", "Date": "missing", "Skew": "1ms"}, unsafe)
}

// Without a table, the error says that CreateTable creates the table.
func TestMissingTable(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.setDateAhead(0)
	opts := dynamodbstore.Options{Table: "other"}
	store := dynamodbstore.New(s.client, opts)
	_, _, err := store.Begin(t.Context(), keyOf("key"), request)
	require.ErrorContains(t, err, "there is no table of records: call CreateTable")
	unsafe, others := checkFindings(t, store)
	require.Empty(t, unsafe)
	require.Len(t, others, 1)
	require.ErrorContains(t, others[0], "call CreateTable")

	for range 2 {
		require.NoError(t, dynamodbstore.CreateTable(t.Context(), s.client, opts))
	}
	require.NoError(t, store.Check(t.Context()))
	s.setReply("DescribeTable", tableReply("id", "S", "ACTIVE", nil))
	require.ErrorContains(t, dynamodbstore.CreateTable(t.Context(), s.client, opts), "the partition key operation, without a sort key")
}
