package exec

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// directive is one conversion of a printf format.
type directive struct {
	text             string // as written, from % to the verb
	flags            string
	width, precision int // -1 if absent
	starWidth        bool
	starPrecision    bool
	long             bool // 8 bytes
	short            int  // 1 for h, 2 for hh
	verb             byte
}

// maxField bounds width and precision.
const maxField = 4096

// parseDirective reads the conversion at s, which begins with %.
func parseDirective(s string) (d directive, ok bool) {
	d.width, d.precision = -1, -1
	i := 1
	for i < len(s) && strings.IndexByte("-+ #0", s[i]) >= 0 {
		i++
	}
	d.flags = s[1:i]
	number := func() int {
		n, from := 0, i
		for i < len(s) && s[i] >= '0' && s[i] <= '9' {
			n = min(n*10+int(s[i]-'0'), maxField)
			i++
		}
		if i == from {
			return -1
		}
		return n
	}
	if i < len(s) && s[i] == '*' {
		d.starWidth = true
		i++
	} else {
		d.width = number()
	}
	if i < len(s) && s[i] == '.' {
		i++
		if i < len(s) && s[i] == '*' {
			d.starPrecision = true
			i++
		} else {
			d.precision = max(number(), 0)
		}
	}
	for i < len(s) && strings.IndexByte("hlLqjzt", s[i]) >= 0 {
		if s[i] == 'h' {
			d.short++
		} else {
			d.long = true
		}
		i++
	}
	if i >= len(s) || strings.IndexByte("diouxXcsfFeEgGaAp%", s[i]) < 0 {
		return d, false
	}
	d.verb, d.text = s[i], s[:i+1]
	return d, true
}

func (d *directive) size() uint64 {
	switch d.verb {
	case '%':
		return 0
	case 'd', 'i', 'o', 'u', 'x', 'X':
		if d.long {
			return 8
		}
		return 4
	case 'c':
		return 4
	}
	return 8
}

// argReader walks the argument buffer.
type argReader struct {
	mem []byte
	at  uint64
	n   int
}

func (r *argReader) next(size uint64) uint64 {
	r.at = (r.at + size - 1) &^ (size - 1)
	var v uint64
	if r.at+size <= uint64(len(r.mem)) {
		v = getBytes(r.mem[r.at : r.at+size])
	}
	r.at += size
	r.n++
	return v
}

// walk calls text for literal parts and conv for conversions.
func walk(format string, text func(string), conv func(*directive)) {
	for len(format) > 0 {
		i := strings.IndexByte(format, '%')
		if i < 0 {
			text(format)
			return
		}
		text(format[:i])
		format = format[i:]
		d, ok := parseDirective(format)
		if !ok {
			text(format[:1])
			format = format[1:]
			continue
		}
		conv(&d)
		format = format[len(d.text):]
	}
}

// printfArgs returns the number of arguments that a format takes and the size
// of their buffer.
func printfArgs(format string) (n int, size uint64) {
	var r argReader
	walk(format, func(string) {}, func(d *directive) {
		if d.starWidth {
			r.next(4)
		}
		if d.starPrecision {
			r.next(4)
		}
		if s := d.size(); s > 0 {
			r.next(s)
		}
	})
	return r.n, r.at
}

// FormatPrintf formats as CUDA's device printf does. args is the buffer that
// vprintf receives: each argument at its natural alignment, integers of 4 or 8
// bytes, floating values as 8 byte doubles, strings as addresses for str to
// resolve. It never fails: a bad directive is printed as it stands and missing
// arguments read as zero.
func FormatPrintf(format string, args []byte, str func(addr uint64) (string, bool)) []byte {
	var out []byte
	r := argReader{mem: args}
	walk(format, func(s string) { out = append(out, s...) }, func(d *directive) {
		if d.starWidth {
			w := int32(r.next(4))
			if w < 0 {
				d.flags += "-"
				w = -max(w, -maxField)
			}
			d.width = min(int(w), maxField)
		}
		if d.starPrecision {
			d.precision = min(int(int32(r.next(4))), maxField)
		}
		if d.verb == '%' {
			out = append(out, '%')
			return
		}
		out = append(out, d.convert(r.next(d.size()), str)...)
	})
	return out
}

func (d *directive) convert(v uint64, str func(uint64) (string, bool)) string {
	switch d.verb {
	case 'd', 'i':
		n := int64(v)
		switch {
		case d.long:
		case d.short == 1:
			n = int64(int16(v))
		case d.short > 1:
			n = int64(int8(v))
		default:
			n = int64(int32(v))
		}
		if n < 0 {
			return d.integer("-", strconv.FormatUint(uint64(-n), 10))
		}
		return d.integer(d.plus(), strconv.FormatInt(n, 10))
	case 'u', 'o', 'x', 'X':
		return d.unsigned(v)
	case 'c':
		return d.pad(string([]byte{byte(v)}))
	case 's':
		s := "(null)"
		if v != 0 && str != nil {
			var ok bool
			if s, ok = str(v); !ok {
				s = "(bad address)"
			}
		}
		if d.precision >= 0 && d.precision < len(s) {
			s = s[:d.precision]
		}
		return d.pad(s)
	case 'p':
		if v == 0 {
			return d.pad("(nil)")
		}
		return d.pad("0x" + strconv.FormatUint(v, 16))
	}
	return d.float(math.Float64frombits(v))
}

func (d *directive) flag(c byte) bool { return strings.IndexByte(d.flags, c) >= 0 }

func (d *directive) plus() string {
	switch {
	case d.flag('+'):
		return "+"
	case d.flag(' '):
		return " "
	}
	return ""
}

func (d *directive) unsigned(v uint64) string {
	switch {
	case d.long:
	case d.short == 1:
		v &= 0xffff
	case d.short > 1:
		v &= 0xff
	default:
		v &= 0xffffffff
	}
	base, prefix := 10, ""
	switch d.verb {
	case 'o':
		base = 8
	case 'x', 'X':
		base = 16
		if d.flag('#') && v != 0 {
			prefix = "0x"
		}
	}
	s := strconv.FormatUint(v, base)
	if d.verb == 'o' && d.flag('#') && s[0] != '0' {
		s = "0" + s
	}
	if d.verb == 'X' {
		s, prefix = strings.ToUpper(s), strings.ToUpper(prefix)
	}
	return d.integer(prefix, s)
}

// integer applies precision and width to digits after a prefix.
func (d *directive) integer(prefix, digits string) string {
	if d.precision == 0 && digits == "0" {
		digits = ""
	}
	if n := d.precision - len(digits); n > 0 {
		digits = strings.Repeat("0", n) + digits
	}
	if d.flag('0') && !d.flag('-') && d.precision < 0 {
		if n := d.width - len(prefix) - len(digits); n > 0 {
			digits = strings.Repeat("0", n) + digits
		}
	}
	return d.pad(prefix + digits)
}

func (d *directive) pad(s string) string {
	n := d.width - len(s)
	if n <= 0 {
		return s
	}
	if d.flag('-') {
		return s + strings.Repeat(" ", n)
	}
	return strings.Repeat(" ", n) + s
}

func (d *directive) float(v float64) string {
	sign := d.plus()
	if math.Signbit(v) {
		sign, v = "-", -v
	}
	var s string
	switch {
	case math.IsInf(v, 0):
		s = "inf"
	case v != v:
		s = "nan"
	}
	if s != "" {
		if d.verb >= 'A' && d.verb <= 'Z' {
			s = strings.ToUpper(s)
		}
		return d.pad(sign + s)
	}
	s = d.digits(v)
	if d.flag('0') && !d.flag('-') {
		if n := d.width - len(sign) - len(s); n > 0 {
			s = strings.Repeat("0", n) + s
		}
	}
	return d.pad(sign + s)
}

// digits formats a finite value without its sign as C does.
func (d *directive) digits(v float64) string {
	verb := "%"
	if d.flag('#') {
		verb += "#"
	}
	prec := d.precision
	if prec < 0 {
		prec = 6
	}
	switch d.verb {
	case 'f', 'F':
		return fmt.Sprintf(verb+".*f", prec, v)
	case 'a', 'A':
		s := strconv.FormatFloat(v, 'x', d.precision, 64)
		if i := strings.IndexAny(s, "p"); i >= 0 && i+2 < len(s) && s[i+2] == '0' && len(s) > i+3 {
			s = s[:i+2] + s[i+3:] // C writes the exponent without padding
		}
		if d.verb == 'A' {
			s = strings.ToUpper(s)
		}
		return s
	}
	if prec == 0 && (d.verb == 'g' || d.verb == 'G') {
		prec = 1
	}
	return fmt.Sprintf(verb+".*"+string(d.verb), prec, v)
}

func itoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func triple(v [3]uint32) string {
	return "[" + itoa(v[0]) + "," + itoa(v[1]) + "," + itoa(v[2]) + "]"
}
