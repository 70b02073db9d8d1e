package report

import "io"

// Safe passes text on with what would steer a terminal replaced by ?: control characters but
// newline and tab, in ASCII and beyond.
func Safe(w io.Writer) io.Writer { return &safe{w: w} }

type safe struct {
	w io.Writer
	// The last byte was c2, which begins U+0080 to U+00BF: the first half of these are controls.
	held bool
}

func (s *safe) Write(p []byte) (int, error) {
	out := make([]byte, 0, len(p)+1)
	for _, b := range p {
		if s.held {
			s.held = false
			if b >= 0x80 && b < 0xa0 {
				out = append(out, '?')
				continue
			}
			out = append(out, 0xc2)
		}
		switch {
		case b == 0xc2:
			s.held = true
		case b < ' ' && b != '\n' && b != '\t', b == 0x7f:
			out = append(out, '?')
		default:
			out = append(out, b)
		}
	}
	if _, err := s.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}
