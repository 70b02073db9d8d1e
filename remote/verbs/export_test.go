package verbs

// TakePiece takes a piece as Fetch does, until it is put back.
func (c *Conn) TakePiece() (put func(), err error) {
	x, _, err := c.claim(true)
	return func() { c.put(x) }, err
}

// Pieces is how many there are.
const Pieces = pieces

// Sleeps reports whether somebody takes completions, or is about to.
func (c *Conn) Sleeps() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.polling
}

// Arrives is what comes of an immediate while so many messages of the peer's are uncredited.
func (c *Conn) Arrives(uncredited int, immediate uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owedCount = uncredited
	return c.immediateLocked(immediate)
}

// RailLost is the word by which a queue pair for copies is given up, and PieceSize the bytes of a
// part of a copy.
const (
	RailLost  = railLost
	PieceSize = pieceSize
)
