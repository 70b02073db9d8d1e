package report

// Key is a key of the terminal: a character, or one of those below.
type Key rune

// Keys that are no characters.
const (
	KeyUp Key = -1 - iota
	KeyDown
	KeyPageUp
	KeyPageDown
	KeyHome
	KeyEnd
)

// Keys decodes what a terminal sends. A sequence may come in pieces; one that means nothing here is
// dropped.
type Keys struct{ held []byte }

var sequences = map[string]Key{
	"[A": KeyUp, "[B": KeyDown, "OA": KeyUp, "OB": KeyDown, "[5~": KeyPageUp, "[6~": KeyPageDown,
	"[H": KeyHome, "[F": KeyEnd, "OH": KeyHome, "OF": KeyEnd, "[1~": KeyHome, "[4~": KeyEnd,
}

// longestSequence bounds what is held of one that does not end.
const longestSequence = 16

// Feed returns the keys that are complete.
func (k *Keys) Feed(p []byte) []Key {
	var keys []Key
	for _, b := range p {
		switch {
		case len(k.held) == 0 && b != 0x1b:
			keys = append(keys, Key(b))
		case len(k.held) == 0, len(k.held) == 1 && b == 0x1b:
			k.held = []byte{b}
		case len(k.held) == 1 && b != '[' && b != 'O': // Escape by itself, then a key
			k.held = nil
			keys = append(keys, Key(b))
		default:
			k.held = append(k.held, b)
			if len(k.held) == 2 || (b < '@' || b > '~') && len(k.held) < longestSequence {
				continue
			}
			if key, ok := sequences[string(k.held[1:])]; ok {
				keys = append(keys, key)
			}
			k.held = nil
		}
	}
	return keys
}
