package cuda

import "causeway/host/driver/cuda/bind"

// hostState is what a session keeps for host functions and managed memory. Its zero value is ready.
type hostState struct {
	serving bool             // host functions are served; worker goroutine
	sources map[owner]source // of libraries and modules that have managed variables
	managed map[owner]managedVars
	retired []bind.Image // of libraries that others took the place of: the driver still reads them
}
