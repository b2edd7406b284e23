resource "aws_dynamodb_table" "idempotency_records" {
  name         = "idempotency_records"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "digest"
  attribute {
    name = "digest"
    type = "B"
  }
  ttl {
    attribute_name = "remove_at"
    enabled        = true
  }
}
