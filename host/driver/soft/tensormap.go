package soft

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// Tensor maps address the tensor memory accelerator, which the software GPU does not have:
// cuda.ErrorNotSupported, and a line that says so.

// TensorMapEncode refuses.
func (s *session) TensorMapEncode(*wire.Call, *wire.TensorMapEncodeArgs, *wire.TensorMapEncodeReply) cuda.Result {
	s.log.Warn("cuTensorMapEncode: the software GPU has no tensor memory accelerator")
	return cuda.ErrorNotSupported
}

// TensorMapReplaceAddress refuses.
func (s *session) TensorMapReplaceAddress(*wire.Call, *wire.TensorMapReplaceAddressArgs, *wire.TensorMapReplaceAddressReply) cuda.Result {
	s.log.Warn("cuTensorMapReplaceAddress: the software GPU has no tensor memory accelerator")
	return cuda.ErrorNotSupported
}
