package grpcidempotency

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// NeedsKey is the default of Options.Methods and ClientOptions.Methods. NeedsKey reports whether calls of fullMethod, for example
// "/payments.v1.PaymentService/Charge", need a key to be safe to repeat. All methods need a key except
//
//   - methods with the idempotency_level NO_SIDE_EFFECTS or IDEMPOTENT in their descriptor, like GET and PUT in HTTP;
//   - the methods of gRPC's own services for health and channelz.
//
// A method needs a key if its descriptor is missing in the registry of the program.
func NeedsKey(fullMethod string) bool {
	service, _, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	if service == "grpc.health.v1.Health" || service == "grpc.channelz.v1.Channelz" {
		return false
	}
	method := findMethod(fullMethod)
	if method == nil {
		return true
	}
	options, _ := method.Options().(*descriptorpb.MethodOptions)
	return options.GetIdempotencyLevel() == descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
}

// findMethod returns the descriptor of fullMethod, or nil if the program has registered none.
func findMethod(fullMethod string) protoreflect.MethodDescriptor {
	name := strings.ReplaceAll(strings.TrimPrefix(fullMethod, "/"), "/", ".")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	method, _ := found.(protoreflect.MethodDescriptor)
	return method
}
