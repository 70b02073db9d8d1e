package cuda

import (
	"bytes"

	"causeway/cuda/fatbin"
)

// mayPrint reports whether code that the driver would take from an image for a GPU of compute capability sm (major*10 +
// minor) can call device printf: its symbols or text then name vprintf. What cannot be looked into counts as printing.
func mayPrint(img []byte, sm int) bool {
	if fatbin.Detect(img) != fatbin.Container {
		return namesPrintf(img)
	}
	entries, err := fatbin.Decode(img)
	if err != nil {
		return true
	}
	native := false
	for i := range entries {
		e := &entries[i]
		if e.Kind != fatbin.KindELF || e.SM/10 != sm/10 || e.SM > sm {
			continue
		}
		native = true
		if entryPrints(e) {
			return true
		}
	}
	if native {
		return false
	}
	best, ok := fatbin.BestPTX(entries, sm)
	return !ok || entryPrints(best)
}

func entryPrints(e *fatbin.Entry) bool {
	code, err := e.Payload()
	return err != nil || namesPrintf(code)
}

func namesPrintf(code []byte) bool { return bytes.Contains(code, []byte("vprintf")) }
