//go:build !amd64

package spin

// Pause tells the CPU that this is a waiting loop.
func Pause() {}
