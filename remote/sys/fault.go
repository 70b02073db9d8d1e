package sys

import "fmt"

// FaultError is an access to memory that was there and is gone: whoever shares its file has made it
// smaller.
type FaultError struct{ Addr uintptr }

func (e *FaultError) Error() string {
	return fmt.Sprintf("the program took away memory that it shares (at %#x)", e.Addr)
}

// Faulted tells of what recover returned in a goroutine with debug.SetPanicOnFault. nil: nothing
// happened. It panics on for anything but such an access.
func Faulted(recovered any) *FaultError {
	switch e := recovered.(type) {
	case nil:
		return nil
	case interface {
		error
		Addr() uintptr
	}:
		return &FaultError{e.Addr()}
	default:
		panic(e)
	}
}
