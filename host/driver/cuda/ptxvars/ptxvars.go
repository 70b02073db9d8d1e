// Package ptxvars moves the managed variables of PTX text to fixed addresses, so that they can lie
// in memory of our choice: their declarations go, and what names them uses the addresses. It owns
// no goroutine and has no state.
package ptxvars

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// ErrUnsupported says that the text uses managed variables in a way that cannot be moved.
var ErrUnsupported = errors.New("managed variables of this code cannot be moved")

// Var is a managed variable.
type Var struct {
	Name   string
	Offset uint64 // from the first byte of all of them
	Size   uint64 // bytes
	Init   []byte // at most Size bytes; what follows is zero
}

const (
	first   = 256     // where the first variable lies
	maxSize = 1 << 30 // of all variables
)

// declaration: linkage, alignment, type, name, element count, initialiser (PTX ISA, "Variables").
var declaration = regexp.MustCompile(`(?s)((?:\.visible|\.extern|\.weak|\.common)\s+)?\.global\s+\.attribute\(\s*\.managed\s*\)\s+` +
	`(?:\.align\s+(\d+)\s+)?\.([a-z]\d+)\s+([\w$]+)\s*(\[\s*(\d*)\s*\])?\s*(?:=\s*([^;]*?)\s*)?;`)

// Find lists the managed variables of a text and the bytes that they take together; none is no
// error.
func Find(text string) (vars []Var, size uint64, err error) {
	size = first
	for _, m := range declaration.FindAllStringSubmatch(text, -1) {
		if strings.HasPrefix(m[1], ".extern") || strings.HasPrefix(m[1], ".common") {
			return nil, 0, fmt.Errorf("%w: %s is defined elsewhere", ErrUnsupported, m[4])
		}
		element, err := strconv.ParseUint(m[3][1:], 10, 8)
		if err != nil || element%8 != 0 || element > 64 {
			return nil, 0, fmt.Errorf("%w: %s is of type .%s", ErrUnsupported, m[4], m[3])
		}
		element /= 8
		count := uint64(1)
		if m[5] != "" {
			if count, err = strconv.ParseUint(m[6], 10, 32); err != nil || count == 0 {
				return nil, 0, fmt.Errorf("%w: %s has no size", ErrUnsupported, m[4])
			}
		}
		align := max(element, 1)
		if m[2] != "" {
			if align, err = strconv.ParseUint(m[2], 10, 16); err != nil || align == 0 || align&(align-1) != 0 {
				return nil, 0, fmt.Errorf("%w: %s has alignment %s", ErrUnsupported, m[4], m[2])
			}
		}
		v := Var{Name: m[4], Size: element * count}
		v.Offset = (size + align - 1) &^ (align - 1)
		if v.Size > maxSize || v.Offset > maxSize-v.Size {
			return nil, 0, fmt.Errorf("%w: more than %d bytes", ErrUnsupported, maxSize)
		}
		size = v.Offset + v.Size
		if v.Init, err = initial(m[7], v.Size, int(element), m[3][0] == 'f'); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", v.Name, err)
		}
		vars = append(vars, v)
	}
	if len(vars) != strings.Count(text, ".attribute(.managed)") {
		return nil, 0, fmt.Errorf("%w: a declaration is not understood", ErrUnsupported)
	}
	if len(vars) == 0 {
		return nil, 0, nil
	}
	return vars, size, nil
}

// initial is what an initialiser's flattened list of numbers means.
func initial(list string, size uint64, element int, float bool) ([]byte, error) {
	list = strings.NewReplacer("{", "", "}", "").Replace(list)
	if strings.TrimSpace(list) == "" {
		return nil, nil
	}
	var b []byte
	for i, f := range strings.Split(list, ",") {
		n, err := number(strings.TrimSpace(f), element, float)
		if err != nil {
			return nil, err
		}
		if uint64((i+1)*element) > size {
			return nil, fmt.Errorf("%w: initialiser is longer than the variable", ErrUnsupported)
		}
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], n)
		b = append(b, word[:element]...)
	}
	return b, nil
}

// number reads a PTX literal as an element's bits: 0fXXXXXXXX and 0dXXXXXXXXXXXXXXXX are floats by
// their bits.
func number(s string, element int, float bool) (uint64, error) {
	hex, single, double := strings.ToLower(s), false, false
	if rest, ok := strings.CutPrefix(hex, "0f"); ok {
		hex, single = rest, true
	} else if rest, ok := strings.CutPrefix(hex, "0d"); ok {
		hex, double = rest, true
	}
	if single || double {
		n, err := strconv.ParseUint(hex, 16, 64)
		switch {
		case err != nil:
			return 0, fmt.Errorf("%w: initialiser %q", ErrUnsupported, s)
		case single && element == 8:
			return math.Float64bits(float64(math.Float32frombits(uint32(n)))), nil
		case double && element == 4:
			return uint64(math.Float32bits(float32(math.Float64frombits(n)))), nil
		}
		return n, nil
	}
	if float {
		return 0, fmt.Errorf("%w: initialiser %q", ErrUnsupported, s)
	}
	s = strings.TrimRight(s, "U")
	if n, err := strconv.ParseInt(s, 0, 64); err == nil {
		return uint64(n), nil
	}
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: initialiser %q", ErrUnsupported, s)
	}
	return n, nil
}

// register holds an address inside the block that surrounds one instruction.
const register = "%causeway_managed"

// Move returns the text with vars at base plus their offsets.
func Move(text string, vars []Var, base uint64) (string, error) {
	addr := map[string]uint64{}
	for _, v := range vars {
		addr[v.Name] = base + v.Offset
	}
	text = declaration.ReplaceAllString(text, "")
	var b strings.Builder
	for line := range strings.Lines(text) {
		out, err := moveLine(line, addr)
		if err != nil {
			return "", err
		}
		b.WriteString(out)
	}
	return b.String(), nil
}

var (
	symbol  = regexp.MustCompile(`[A-Za-z_$%][\w$]*`)
	generic = regexp.MustCompile(`generic\(\s*([\w$]+)\s*\)`)
)

func moveLine(line string, addr map[string]uint64) (string, error) {
	code, comment, _ := strings.Cut(line, "//")
	if comment != "" {
		comment = "//" + comment
	}
	code = generic.ReplaceAllStringFunc(code, func(m string) string {
		if a, ok := addr[generic.FindStringSubmatch(m)[1]]; ok {
			return strconv.FormatUint(a, 10)
		}
		return m
	})
	wrapped, at := "", uint64(0)
	var err error
	last := 0
	var b strings.Builder
	for _, m := range symbol.FindAllStringIndex(code, -1) {
		name := code[m[0]:m[1]]
		a, ok := addr[name]
		if !ok || m[0] > 0 && (code[m[0]-1] == '.' || code[m[0]-1] >= '0' && code[m[0]-1] <= '9') {
			continue
		}
		b.WriteString(code[last:m[0]])
		last = m[1]
		if strings.HasSuffix(strings.TrimRight(code[:m[0]], " \t"), "[") {
			if wrapped != "" && wrapped != name {
				err = fmt.Errorf("%w: two in one instruction", ErrUnsupported)
			}
			wrapped, at = name, a
			b.WriteString(register)
			continue
		}
		b.WriteString(strconv.FormatUint(a, 10))
	}
	if err != nil {
		return "", err
	}
	b.WriteString(code[last:])
	if wrapped == "" {
		return b.String() + comment, nil
	}
	body := strings.TrimSpace(b.String())
	if !strings.HasSuffix(body, ";") || strings.Count(body, ";") != 1 {
		return "", fmt.Errorf("%w: %q", ErrUnsupported, body)
	}
	return fmt.Sprintf("{ .reg .b64 %s; mov.b64 %s, %d; %s }%s\n", register, register, at, body, comment), nil
}
