package link

import "causeway/remote"

// Fits reports whether a worker that started its driver before a guest said hello may serve it. devices is how many devices the
// worker offers by number; 0: all.
func Fits(h remote.Hello, devices int) bool {
	return h.Flags&remote.EnvOwnDriver == 0 && (h.Flags&remote.EnvFirstDevice == 0 || devices == 1)
}
