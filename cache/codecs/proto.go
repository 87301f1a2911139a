package codecs

import (
	"fmt"
	"reflect"

	"google.golang.org/protobuf/proto"

	"github.com/levee-go/levee/cache"
)

// Proto stores protobuf messages: V must be a pointer to a generated type, such as *pb.Product.
// The methods of vtprotobuf, MarshalVT and UnmarshalVT, are used if the type has them. Fields
// that a reader does not know are kept, as protobuf specifies, so a field may be added without
// another Schema. For any other V, each value is an error.
func Proto() cache.Codec { return protoCodec{} }

type protoCodec struct{}

type (
	marshalerVT   interface{ MarshalVT() ([]byte, error) }
	unmarshalerVT interface{ UnmarshalVT(data []byte) error }
)

func (protoCodec) Marshal(v any) ([]byte, error) {
	switch m := v.(type) {
	case marshalerVT:
		return m.MarshalVT()
	case proto.Message:
		return proto.MarshalOptions{Deterministic: true}.Marshal(m)
	}
	return nil, fmt.Errorf("codecs: a %T is no protobuf message", v)
}

// Unmarshal gets a pointer to the V of a cache, which itself is a pointer.
func (protoCodec) Unmarshal(data []byte, v any) error {
	to := reflect.ValueOf(v)
	if to.Kind() != reflect.Pointer || to.Elem().Kind() != reflect.Pointer {
		return fmt.Errorf("codecs: a %T leads to no protobuf message", v)
	}
	message := reflect.New(to.Type().Elem().Elem())
	switch m := message.Interface().(type) {
	case unmarshalerVT:
		if err := m.UnmarshalVT(data); err != nil {
			return err
		}
	case proto.Message:
		if err := proto.Unmarshal(data, m); err != nil {
			return err
		}
	default:
		return fmt.Errorf("codecs: a %T leads to no protobuf message", v)
	}
	to.Elem().Set(message)
	return nil
}

// Size returns an estimate of the memory that a message takes.
func (protoCodec) Size(v any) int { return sizeOf(v) }
