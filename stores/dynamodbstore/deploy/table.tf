resource "aws_dynamodb_table" "idempotency_records" {
  name         = "idempotency_records"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "operation"
  attribute {
    name = "operation"
    type = "S"
  }
  ttl {
    attribute_name = "remove_at"
    enabled        = true
  }
}
