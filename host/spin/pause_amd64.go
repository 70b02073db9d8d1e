package spin

// Pause tells the CPU that this is a waiting loop: it saves power and leaves the sibling thread its share.
func Pause()
