package fatbin

import (
	"bytes"
	"encoding/binary"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

/*
An entry of text has options for the assembler behind its header: at a place that the header names
(20) two numbers, where the words lie, from the entry's start on, and how many bytes they are. A
driver (580, on an H200) reads both wherever they point to, says words that it does not know in the
log that the guest gets, and opens files that they name: with them a guest read the worker's memory,
and the host's files.
*/

// optionsAt is where a header says where its options are.
const (
	optionsAt = 20
	nameAt    = 32
)

// options checks what the entry's header, which is all there, says of options and of a name. Text
// has options, if only none.
func (e *Entry) options(header []byte) error {
	le := binary.LittleEndian
	total := uint64(len(header))
	if at, n := uint64(le.Uint32(header[nameAt:])), uint64(le.Uint32(header[nameAt+4:])); at > total || n > total-at {
		return malformed("a name at %d, %d bytes, beyond a header of %d", at, n, total)
	}
	at := uint64(le.Uint32(header[optionsAt:]))
	if at == 0 && e.Kind != KindPTX {
		return nil
	}
	if at < entrySize || at > total-8 {
		return malformed("options at %d in a header of %d", at, total)
	}
	words, n := uint64(le.Uint32(header[at:])), uint64(le.Uint32(header[at+4:]))
	if words == 0 && n == 0 { // as CUDA 11 says that there are none
		return nil
	}
	if words < entrySize || words >= total || n >= total-words {
		return malformed("options of %d bytes at %d in a header of %d", n, words, total)
	}
	if e.Kind == KindELF { // they are numbers there, and nobody takes them for words
		return nil
	}
	end := bytes.IndexByte(header[words:], 0)
	if end < 0 {
		return malformed("options without an end")
	}
	return options(string(header[words:][:end]))
}

// filing are the assembler's options that name files, take text, or end the process, and have none
// of filingWords in their names.
var filing = []string{"o", "optf", "ias", "h", "V", "link-info", "trap-into-debugger"}

// filingWords are what names of such options are made of, in ptxas 11.8 to 13.0. Several are in no
// list of it: --link-info, --query-controls and --fdevice-time-trace make the file, or empty it.
var filingWords = []string{"file", "input", "output", "string", "help", "version", "controls", "schema", "trace", "stats", "dump", "tool-name"}

// threaded are options that say how many threads are to compile: ptxas 13.0 makes as many, with
// 30,000 more than 7,300 before a kernel of one line was done; 0 is one for each processor.
var threaded = []string{"split-compile"}

// MaxThreads are how many threads a guest may have a compiler make.
const MaxThreads = 64

// extensions is the one option with a file that NVIDIA's libraries have (cuDNN 9): one of the
// toolkit's, which is nobody's secret.
var extensions = regexp.MustCompile(`(^|[ \t])--ext-desc-file="/usr/local/cuda-[0-9]+\.[0-9]+/bin/ptxExtDesc\.txt"([ \t]|$)`)

// options checks the words: none has what paths and quotations are made of.
func options(words string) error {
	words = extensions.ReplaceAllString(words, " ")
	for _, c := range []byte(words) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte(" \t_-=,:+", c) >= 0:
		default:
			return malformed("options for the assembler that are none: %q", words)
		}
	}
	fields := strings.Fields(words)
	for i, w := range fields {
		name, value, given := strings.Cut(strings.TrimLeft(w, "-"), "=")
		switch {
		case slices.Contains(filing, name), slices.ContainsFunc(filingWords, func(word string) bool { return strings.Contains(name, word) }):
			return malformed("options for the assembler that name files: %q", words)
		case slices.Contains(threaded, name):
			if !given && i+1 < len(fields) {
				value = fields[i+1]
			}
			if n, err := strconv.ParseUint(value, 10, 64); err != nil || n > MaxThreads {
				return malformed("options for the assembler with more than %d threads: %q", MaxThreads, words)
			}
		}
	}
	return nil
}
