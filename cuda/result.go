package cuda

import "fmt"

// Result is a CUresult. It implements error; Success is the one value that is no error, so compare
// with it (or use Err) before treating a Result as an error.
type Result int32

// Name is the public name, as cuGetErrorName returns it: "CUDA_ERROR_OUT_OF_MEMORY".
func (r Result) Name() string {
	if name, _, ok := r.lookup(); ok {
		return name
	}
	return fmt.Sprintf("CUresult(%d)", int32(r))
}

// Text is the public description, as cuGetErrorString returns it.
func (r Result) Text() string {
	if _, text, ok := r.lookup(); ok {
		return text
	}
	return "unrecognized error code"
}

// Known reports whether the API defines the code.
func (r Result) Known() bool {
	_, _, ok := r.lookup()
	return ok
}

func (r Result) Error() string {
	return fmt.Sprintf("%s (%d): %s", r.Name(), int32(r), r.Text())
}

// Err is nil for Success, else r.
func (r Result) Err() error {
	if r == Success {
		return nil
	}
	return r
}

// Sticky reports whether a context that reported r answers nothing else any more: the fault
// destroyed it.
func (r Result) Sticky() bool {
	switch r {
	case ErrorECCUncorrectable, ErrorNvlinkUncorrectable, ErrorContained, ErrorIllegalAddress, ErrorLaunchTimeout, ErrorAssert,
		ErrorHardwareStackError, ErrorIllegalInstruction, ErrorMisalignedAddress, ErrorInvalidAddressSpace, ErrorInvalidPc,
		ErrorLaunchFailed, ErrorTensorMemoryLeak, ErrorExternalDevice, ErrorMPSClientTerminated:
		return true
	}
	return false
}
