package cuda

import (
	"log/slog"

	"causeway/cuda"
)

const pointerIsManaged = 8 // CU_POINTER_ATTRIBUTE_IS_MANAGED

// refuseManaged keeps the address of a managed variable from the guest: kernels reach it, the guest's own code does not.
func (s *session) refuseManaged(ptr uint64, name []byte) cuda.Result {
	*s.out.u64(0) = 0
	if s.fn.cuPointerGetAttribute.call(s.out.addr(), pointerIsManaged, ptr) != cuda.Success || *s.out.i32(0) == 0 {
		return cuda.Success
	}
	slog.Info("managed variable is not given to the guest", "name", string(name))
	return cuda.ErrorNotSupported
}
