package grpcidempotency_test

const childVariable = "IDEMPOTENCY_TEST_CHILD"

func runChild() {}
