package cuda

import (
	"log/slog"
	"slices"

	"causeway/cuda"
	"causeway/cuda/fatbin"
)

// check looks at an image of the guest's before the driver does, which takes its word for all
// lengths.
func (s *session) check(img []byte) (*fatbin.Code, cuda.Result) {
	code, err := fatbin.Check(img, s.takes)
	if err != nil {
		slog.Info("an image is not shown to the driver", "error", err)
		return nil, cuda.ErrorInvalidImage
	}
	return code, cuda.Success
}

// takes reports whether a driver would look at code for GPUs of an architecture: that of one of the
// session's, or an older one of its line.
func (s *session) takes(sm int) bool {
	return len(s.devices) == 0 || slices.ContainsFunc(s.devices, func(d deviceInfo) bool { return int(d.Compute)/10 == sm/10 })
}
