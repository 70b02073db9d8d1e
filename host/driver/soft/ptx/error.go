package ptx

import "fmt"

// Error is a fault in the source text.
type Error struct {
	Line int // 1 is the first line
	Msg  string
}

func (e *Error) Error() string { return fmt.Sprintf("ptx: line %d: %s", e.Line, e.Msg) }
