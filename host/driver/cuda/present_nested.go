//go:build nested

package cuda

// Present is true: in builds for the nested test the driver is whatever libcuda.so.1 the loader
// finds.
func Present() bool { return true }
