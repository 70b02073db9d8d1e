package driver

// Warmer is a Backend that can do the slow part of Open and SessionInit before its guest is known:
// start the machine's driver, make the first device's primary context. A session that is then
// opened takes over what is there. Called at most once, before Open, by the goroutine that opens
// the session; an error leaves the backend as it was.
type Warmer interface {
	Warm(o Options) error
}
