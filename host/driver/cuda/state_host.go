package cuda

// hostState is what a session keeps for host functions and managed memory. Its zero value is ready.
type hostState struct {
	serving bool             // host functions are served; worker goroutine
	sources map[owner]source // of libraries and modules that have managed variables
	managed map[owner]managedVars
	// Bytes that are booked for what the driver made of their managed variables.
	made map[owner]uint64
	// Libraries that others took the place of: a guest may have handles of theirs, and the driver
	// still reads their images, until the library ends.
	retired map[uint32]retired
}
