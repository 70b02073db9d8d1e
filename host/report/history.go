package report

import "math"

// sparks are the heights of a history, from nothing to all.
const (
	sparkFirst, sparkLast = '▁', '█'

	plainSparks = "_.:-=+*#" // where the terminal's characters are ASCII
	historyLen  = 10         // readings that are shown
)

// history is how busy GPUs and vGPUs were at the last readings, 0 to 1 each, by UUID and by
// VM/NAME.
type history map[string][]float64

// add takes a reading's values in. What is not there any more is forgotten.
func (h history) add(now map[string]float64) {
	for key := range h {
		if _, ok := now[key]; !ok {
			delete(h, key)
		}
	}
	for key, v := range now {
		list := append(h[key], v)
		h[key] = list[max(0, len(list)-historyLen):]
	}
}

// spark draws a history, the newest at the right.
func (h history) spark(key string, ascii bool) string {
	list := h[key]
	text := make([]rune, historyLen)
	for i := range text {
		text[i] = ' '
	}
	for i, v := range list {
		level := min(int(math.Ceil(min(max(v, 0), 1)*8)), 8)
		r := rune(sparkFirst + max(level-1, 0))
		if ascii {
			r = rune(plainSparks[max(level-1, 0)])
		}
		text[historyLen-len(list)+i] = r
	}
	return string(text)
}

// bar draws a part of a whole in so many characters; a negative part is not known.
func bar(part float64, length int) string {
	n := int(min(max(part, 0), 1)*float64(length) + 0.5)
	b := make([]byte, 0, length+2)
	b = append(b, '[')
	for i := range length {
		if i < n {
			b = append(b, '|')
		} else {
			b = append(b, ' ')
		}
	}
	return string(append(b, ']'))
}

// level is the colour of a part of a whole.
func level(part float64) Style {
	switch {
	case part >= 0.95:
		return Bad
	case part >= 0.8:
		return Warm
	case part > 0:
		return Good
	}
	return Plain
}

// part of a whole that may be none.
func part(n, of uint64) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}
