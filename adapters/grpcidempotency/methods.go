package grpcidempotency

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// NeedsKey is the default of Options.Methods and ClientOptions.Methods. It reports whether a call of the method, such as
// "/payments.v1.PaymentService/Charge", needs a key to be safe to repeat. All do except
//
//   - those whose descriptor says so: its idempotency_level is NO_SIDE_EFFECTS or IDEMPOTENT, as GET and PUT are in HTTP;
//   - those of gRPC's own services for health and channelz.
//
// A method whose descriptor is not registered in this program needs a key.
func NeedsKey(fullMethod string) bool {
	service, _, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	if service == "grpc.health.v1.Health" || service == "grpc.channelz.v1.Channelz" {
		return false
	}
	described := descriptorOf(fullMethod)
	if described == nil {
		return true
	}
	options, _ := described.Options().(*descriptorpb.MethodOptions)
	return options.GetIdempotencyLevel() == descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
}

// descriptorOf returns the descriptor of a method; nil if it is not registered.
func descriptorOf(fullMethod string) protoreflect.MethodDescriptor {
	name := strings.ReplaceAll(strings.TrimPrefix(fullMethod, "/"), "/", ".")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	method, _ := found.(protoreflect.MethodDescriptor)
	return method
}
