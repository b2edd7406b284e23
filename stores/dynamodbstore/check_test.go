package dynamodbstore_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// findings returns the settings that Check warns of, and its other errors.
func findings(t *testing.T, store *dynamodbstore.Store) (unsafe map[string]string, others []error) {
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

// described is what the service says of a table.
func described(key, kind, status string, more object) object {
	all := object{
		"TableName": records, "TableStatus": status, "KeySchema": []object{{"AttributeName": key, "KeyType": "HASH"}},
		"AttributeDefinitions": []object{{"AttributeName": key, "AttributeType": kind}},
	}
	for name, value := range more {
		all[name] = value
	}
	return object{"Table": all}
}

func expiring(name, status string) object {
	return object{"TimeToLiveDescription": object{"AttributeName": name, "TimeToLiveStatus": status}}
}

// The answers are those that the service documents, with which the emulator cannot be set up.
func TestCheck(t *testing.T) {
	t.Parallel()
	replicas := []object{{"RegionName": "eu-west-1", "ReplicaStatus": "ACTIVE"}}
	sound := described("digest", "B", "ACTIVE", nil)
	for name, tt := range map[string]struct {
		table, ttl any
		want       map[string]string
		other      string
	}{
		"sound":          {table: sound},
		"being updated":  {table: described("digest", "B", "UPDATING", nil)},
		"being made":     {table: described("digest", "B", "CREATING", nil), other: "the table is CREATING"},
		"being deleted":  {table: described("digest", "B", "DELETING", nil), other: "the table is DELETING"},
		"another key":    {table: described("id", "B", "ACTIVE", nil), other: "the partition key digest alone"},
		"key in text":    {table: described("digest", "S", "ACTIVE", nil), other: "is of type S, not B"},
		"sort key, too":  {table: withSortKey(), other: "the partition key digest alone"},
		"TTL is off":     {table: sound, ttl: expiring("", "DISABLED"), want: map[string]string{"TimeToLive": "DISABLED"}},
		"TTL goes off":   {table: sound, ttl: expiring("remove_at", "DISABLING"), want: map[string]string{"TimeToLive": "DISABLED"}},
		"TTL is another": {table: sound, ttl: expiring("expires", "ENABLED"), want: map[string]string{"TimeToLive": "expires"}},
		"TTL comes":      {table: sound, ttl: expiring("remove_at", "ENABLING")},
		"global table": {table: described("digest", "B", "ACTIVE", object{"Replicas": replicas}),
			want: map[string]string{"MultiRegionConsistency": "EVENTUAL"}},
		"global table, strongly consistent": {
			table: described("digest", "B", "ACTIVE", object{"Replicas": replicas, "MultiRegionConsistency": "STRONG"}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.ahead(0)
			s.answer("DescribeTable", tt.table)
			if tt.ttl != nil {
				s.answer("DescribeTimeToLive", tt.ttl)
			}
			unsafe, others := findings(t, dynamodbstore.New(s.client, dynamodbstore.Options{}))
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
	table := described("digest", "B", "ACTIVE", nil)["Table"].(object)
	table["KeySchema"] = append(table["KeySchema"].([]object), object{"AttributeName": "at", "KeyType": "RANGE"})
	return object{"Table": table}
}

// What a role may not do is named, and so is what the service does not tell.
func TestCheckOfPermissions(t *testing.T) {
	t.Parallel()
	denied := fails(400, "AccessDeniedException")
	for _, call := range []string{"GetItem", "UpdateItem"} {
		s := newService(t)
		s.ahead(0)
		s.inject(call, denied)
		unsafe, others := findings(t, dynamodbstore.New(s.client, dynamodbstore.Options{}))
		require.Empty(t, unsafe)
		require.Len(t, others, 1)
		require.ErrorContains(t, others[0], "dynamodbstore: check: operation error DynamoDB: "+call)
	}
	for _, call := range []string{"DescribeTable", "DescribeTimeToLive"} {
		s := newService(t)
		s.ahead(0)
		s.inject(call, denied)
		unsafe, others := findings(t, dynamodbstore.New(s.client, dynamodbstore.Options{}))
		require.Empty(t, others)
		require.Equal(t, map[string]string{"dynamodb:" + call: "denied"}, unsafe)
	}
	unsafe, others := findings(t, dynamodbstore.New(newTable(t), local))
	require.Empty(t, others)
	require.Equal(t, map[string]string{"DescribeTable": "missing", "Date": "missing", "Skew": "1ms"}, unsafe)
}

// Whoever meets no table is told what makes it.
func TestThereIsNoTable(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.ahead(0)
	opts := dynamodbstore.Options{Table: "other"}
	store := dynamodbstore.New(s.client, opts)
	_, _, err := store.Begin(t.Context(), keyOf("key"), request)
	require.ErrorContains(t, err, "there is no table of records: call CreateTable")
	unsafe, others := findings(t, store)
	require.Empty(t, unsafe)
	require.Len(t, others, 1)
	require.ErrorContains(t, others[0], "call CreateTable")

	for range 2 {
		require.NoError(t, dynamodbstore.CreateTable(t.Context(), s.client, opts))
	}
	require.NoError(t, store.Check(t.Context()))
	s.answer("DescribeTable", described("id", "S", "ACTIVE", nil))
	require.ErrorContains(t, dynamodbstore.CreateTable(t.Context(), s.client, opts), "the partition key digest alone")
}
