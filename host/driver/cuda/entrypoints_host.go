package cuda

// hostEntryPoints are the driver functions of host functions and managed memory.
type hostEntryPoints struct {
	cuLaunchHostFunc, cuStreamAddCallback entry
}
