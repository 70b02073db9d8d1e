package ptxvars

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Bytes is how much memory a driver makes for the managed variables of a text, whatever there is in
// it that Find does not know its way about. A text of which that cannot be told is ErrHidden:
// compilers write none.
func Bytes(text string) (total uint64, err error) {
	last, found := strings.LastIndex(text, managed), 0
	for rest := text; len(text)-len(rest) <= last; {
		var statement, inner string
		if statement, inner, rest, _, err = cut(rest); err != nil {
			return 0, err
		}
		if strings.Contains(inner, managed) {
			return 0, fmt.Errorf("%w: a managed one is declared in a function", ErrHidden)
		}
		if !strings.Contains(statement, managed) {
			continue
		}
		found++
		n, err := bytesOf(statement)
		if err != nil {
			return 0, err
		}
		var over uint64
		if total, over = bits.Add64(total, n, 0); over != 0 {
			return 0, fmt.Errorf("%w: they take more than can be counted", ErrHidden)
		}
	}
	if n := strings.Count(text, managed); n != found { // an assembler may see comments elsewhere
		return 0, fmt.Errorf("%w: %d managed ones where %d are declared", ErrHidden, n, found)
	}
	return total, nil
}

const managed = ".managed"

// bytesOf is the size of the one variable that a statement declares.
func bytesOf(statement string) (uint64, error) {
	hidden := func() (uint64, error) {
		return 0, fmt.Errorf("%w: %.100q is not understood", ErrHidden, statement)
	}
	head, value, _ := strings.Cut(statement, "=")
	_, head, ok := strings.Cut(head, managed)
	if !ok || strings.Contains(head, managed) {
		return hidden()
	}
	// To the end of the attribute's brackets. Then alignment, type, name, dimensions.
	for depth := 1; depth > 0; {
		i := strings.IndexAny(head, "()")
		switch {
		case i < 0:
			return hidden()
		case head[i] == '(':
			depth++
		default:
			depth--
		}
		head = head[i+1:]
	}
	dims := ""
	if i := strings.IndexByte(head, '['); i >= 0 {
		head, dims = head[:i], head[i:]
	}
	if strings.ContainsAny(head, ",()") {
		return hidden()
	}
	size := uint64(0)
	for _, w := range strings.Fields(strings.ReplaceAll(head, ".", " .")) {
		switch {
		case w == ".v2" || w == ".v4" || w == ".align":
		case len(w) > 2 && w[0] == '.':
			n, err := strconv.ParseUint(w[2:], 10, 16)
			if err != nil || size != 0 {
				return hidden()
			}
			size = (n + 7) / 8
		}
	}
	switch {
	case size == 0:
		return hidden()
	case strings.Contains(head, ".v2"):
		size *= 2
	case strings.Contains(head, ".v4"):
		size *= 4
	}
	for dims = strings.TrimSpace(dims); dims != ""; dims = strings.TrimSpace(dims) {
		number, rest, ok := strings.Cut(strings.TrimPrefix(dims, "["), "]")
		if dims[0] != '[' || !ok {
			return hidden()
		}
		n, err := uint64(0), error(nil)
		if number = strings.TrimSpace(number); number == "" { // as many as there are values
			n = uint64(strings.Count(value, ",") + 1)
		} else if n, err = strconv.ParseUint(strings.TrimRight(number, "U"), 0, 64); err != nil {
			return hidden()
		}
		over, all := bits.Mul64(size, n)
		if over != 0 {
			return hidden()
		}
		size, dims = all, rest
	}
	return size, nil
}
