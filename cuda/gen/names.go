package main

import "strings"

// initialisms that Go writes in capitals.
var initialisms = map[string]string{"uuid": "UUID", "pci": "PCI", "id": "ID"}

// camel turns a field name into an exported Go name: wall_ms is WallMs.
func camel(s string) string {
	var b strings.Builder
	for w := range strings.SplitSeq(strings.ToLower(s), "_") {
		if i, ok := initialisms[w]; ok {
			b.WriteString(i)
		} else if w != "" {
			b.WriteString(strings.ToUpper(w[:1]) + w[1:])
		}
	}
	return b.String()
}

// snake turns a Go-like name into words with underscores: MemcpyHtoD is memcpy_hto_d, Memcpy3D is
// memcpy_3d.
func snake(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		upper := c >= 'A' && c <= 'Z'
		prev := i > 0 && (s[i-1] >= 'a' && s[i-1] <= 'z' || s[i-1] >= '0' && s[i-1] <= '9' && i+1 < len(s) && s[i+1] >= 'a' && s[i+1] <= 'z')
		next := i > 0 && upper && s[i-1] >= 'A' && s[i-1] <= 'Z' && i+1 < len(s) && s[i+1] >= 'a' && s[i+1] <= 'z'
		if upper && (prev || next) {
			b.WriteByte('_')
		}
		b.WriteByte(c)
	}
	return strings.ToLower(b.String())
}

// macro is the name of a C constant: WorkerDead is CW_WORKER_DEAD.
func macro(s string) string { return "CW_" + strings.ToUpper(snake(s)) }

// goType is the Go type of an op's field.
func goType(t string) string {
	switch t {
	case "u8", "char":
		return "uint8"
	case "u16":
		return "uint16"
	case "u32":
		return "uint32"
	case "i32":
		return "int32"
	case "u64":
		return "uint64"
	case "f32":
		return "float32"
	case "id", "newid":
		return "ID"
	case "stream":
		return "Stream"
	}
	return "[]byte"
}

// cType is the C type of an op's field in its struct.
func cType(t string) string {
	switch t {
	case "char":
		return "char"
	case "i32":
		return "int32_t"
	case "u64":
		return "uint64_t"
	case "u8":
		return "uint8_t"
	case "u16":
		return "uint16_t"
	case "f32":
		return "float"
	case "bytes", "data":
		return "struct cw_span"
	}
	return "uint32_t"
}
