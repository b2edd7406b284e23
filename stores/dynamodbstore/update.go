package dynamodbstore

import (
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// update builds a conditional update of one item.
type update struct {
	operation    uuid.UUID
	setClauses   []string
	removedAttrs []string
	conditions   []string
	values       map[string]value
}

func newUpdate(operation uuid.UUID) *update {
	return &update{operation: operation, values: make(map[string]value)}
}

// set sets an attribute to v.
func (u *update) set(name string, v value) *update {
	u.setClauses = append(u.setClauses, name+" = :"+name)
	u.values[":"+name] = v
	return u
}

// setText sets an attribute to text, or removes the attribute if text is empty.
func (u *update) setText(name, text string) *update {
	if text == "" {
		return u.remove(name)
	}
	return u.set(name, &types.AttributeValueMemberS{Value: text})
}

func (u *update) remove(names ...string) *update {
	u.removedAttrs = append(u.removedAttrs, names...)
	return u
}

// require adds a condition in the syntax of DynamoDB.
func (u *update) require(condition string) *update {
	u.conditions = append(u.conditions, condition)
	return u
}

// requireValue requires that an attribute has the value v.
func (u *update) requireValue(name string, v value) *update {
	u.values[":was_"+name] = v
	return u.require(name + " = :was_" + name)
}

func (u *update) requireAttribute(name string) *update {
	return u.require("attribute_exists(" + name + ")")
}

func (u *update) requireMissing(name string) *update {
	return u.require("attribute_not_exists(" + name + ")")
}

// requireOwner requires that the claim with that token holds an unexpired record.
func (u *update) requireOwner(token []byte, now int64) *update {
	u.values[":now"] = numberValue(now)
	return u.requireValue(attrToken, binaryValue(token)).requireAttribute(attrLease).require(attrExpires + " > :now")
}

// requireUnchanged requires that the record is still the record seen, except for checkpoints stored meanwhile. Token and lease
// are sufficient, because each change of a record sets a new token or a new lease, or removes the lease. A claim whose record
// has no lease changes the record no more.
func (u *update) requireUnchanged(seen *sqlstore.Row) *update {
	u.requireValue(attrToken, binaryValue(seen.Token))
	if seen.Lease.Valid {
		u.requireValue(attrLease, numberValue(seen.Lease.Int64))
	}
	return u
}

// requireStepsSize requires checkpoints of size bytes.
func (u *update) requireStepsSize(size int) *update {
	if size == 0 {
		return u.requireMissing(attrSteps)
	}
	return u.requireValue(attrStepsSize, numberValue(int64(size)))
}

// setSteps stores checkpoints. Without entries, setSteps leaves the update as it is.
func (u *update) setSteps(entries []byte) *update {
	if len(entries) == 0 {
		return u
	}
	return u.set(attrSteps, binaryValue(entries)).set(attrStepsSize, numberValue(int64(len(entries))))
}

// removeSteps removes the checkpoints.
func (u *update) removeSteps() *update { return u.remove(attrSteps, attrStepsSize) }

// setExpiry sets the end of the record, in microseconds. The service may delete the item an hour later.
func (u *update) setExpiry(at int64) *update {
	const micros, hour = 1e6, 3600
	return u.set(attrExpires, numberValue(at)).set(attrRemoveAt, numberValue(at/micros+hour))
}

// buildInput returns the request. If the condition fails, the service returns the item.
func (u *update) buildInput(tableName string) *dynamodb.UpdateItemInput {
	expression := "SET " + strings.Join(u.setClauses, ", ")
	if len(u.removedAttrs) > 0 {
		expression += " REMOVE " + strings.Join(u.removedAttrs, ", ")
	}
	return &dynamodb.UpdateItemInput{
		TableName: aws.String(tableName), Key: itemKey(u.operation), UpdateExpression: aws.String(expression),
		ConditionExpression:                 aws.String(u.joinConditions()),
		ExpressionAttributeValues:           u.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
}

func (u *update) joinConditions() string { return strings.Join(u.conditions, " AND ") }
