package dynamodbstore

import (
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// update is a change of one item, under a condition.
type update struct {
	digest     []byte
	sets       []string
	removes    []string
	conditions []string
	values     map[string]value
}

func newUpdate(digest []byte) *update { return &update{digest: digest, values: make(map[string]value)} }

// set has attributes set.
func (u *update) set(name string, v value) *update {
	u.sets = append(u.sets, name+" = :"+name)
	u.values[":"+name] = v
	return u
}

// setText has an attribute set, or removed if it is empty.
func (u *update) setText(name, text string) *update {
	if text == "" {
		return u.remove(name)
	}
	return u.set(name, &types.AttributeValueMemberS{Value: text})
}

func (u *update) remove(names ...string) *update {
	u.removes = append(u.removes, names...)
	return u
}

// when adds a condition.
func (u *update) when(condition string) *update {
	u.conditions = append(u.conditions, condition)
	return u
}

// is adds the condition that an attribute has a value.
func (u *update) is(name string, v value) *update {
	u.values[":was_"+name] = v
	return u.when(name + " = :was_" + name)
}

// has adds the condition that an attribute is there, or that it is not.
func (u *update) has(name string, there bool) *update {
	if there {
		return u.when("attribute_exists(" + name + ")")
	}
	return u.when("attribute_not_exists(" + name + ")")
}

// isOwn adds the condition that the claim with that token holds its record.
func (u *update) isOwn(token []byte, now int64) *update {
	u.values[":now"] = number(now)
	return u.is(tokenName, binary(token)).has(leaseName, true).when(expiresName + " > :now")
}

// isStill adds the condition that the record is the one that was seen. Whatever changes a record gives it another token, or
// another lease or none. A claim whose record has no lease changes nothing more.
func (u *update) isStill(seen *sqlstore.Row) *update {
	u.is(tokenName, binary(seen.Token))
	if seen.Lease.Valid {
		u.is(leaseName, number(seen.Lease.Int64))
	}
	return u
}

// hasSteps adds the condition that so many bytes of checkpoints are stored.
func (u *update) hasSteps(size int) *update {
	if size == 0 {
		return u.has(stepsName, false)
	}
	return u.is(stepsSizeName, number(int64(size)))
}

// setSteps has checkpoints stored, if there are any.
func (u *update) setSteps(entries []byte) *update {
	if len(entries) == 0 {
		return u
	}
	return u.set(stepsName, binary(entries)).set(stepsSizeName, number(int64(len(entries))))
}

// removeSteps removes the checkpoints.
func (u *update) removeSteps() *update { return u.remove(stepsName, stepsSizeName) }

// expiry sets when the record stops to count. The service may delete it an hour later.
func (u *update) expiry(at int64) *update {
	const micros, hour = 1e6, 3600
	return u.set(expiresName, number(at)).set(removeName, number(at/micros+hour))
}

// input returns the request. If the condition does not hold, the answer has the item.
func (u *update) input(table string) *dynamodb.UpdateItemInput {
	expression := "SET " + strings.Join(u.sets, ", ")
	if len(u.removes) > 0 {
		expression += " REMOVE " + strings.Join(u.removes, ", ")
	}
	return &dynamodb.UpdateItemInput{
		TableName: aws.String(table), Key: keyOf(u.digest), UpdateExpression: aws.String(expression),
		ConditionExpression:                 aws.String(u.condition()),
		ExpressionAttributeValues:           u.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
}

func (u *update) condition() string { return strings.Join(u.conditions, " AND ") }
