package cuda

// hostState is what a session keeps for host functions and managed memory. Its zero value is ready.
type hostState struct {
	serving bool              // host functions are served; worker goroutine
	sources map[uint32][]byte // images of libraries, for managed variables
	managed map[uint32]managedVars
	retired []image // of libraries that others took the place of: the driver still reads them
}
