package drivertest

import (
	"fmt"
	"reflect"
	"strings"
)

// Weigh counts what is kept of a value: the elements of all maps and slices that are reached from
// it through this module's own types, by the field that has them. Nobody may change it meanwhile.
func Weigh(v any) map[string]int {
	h := weighing{counts: map[string]int{}, seen: map[seenValue]bool{}}
	h.look("", reflect.ValueOf(v))
	return h.counts
}

// Grown says what of a value is more, by more than slack, than it was; "": nothing.
func Grown(before, after map[string]int, slack int) (said string) {
	for field, n := range after {
		if n > before[field]+slack {
			said += fmt.Sprintf("%s: %d, was %d\n", field, n, before[field])
		}
	}
	return said
}

type weighing struct {
	counts map[string]int
	seen   map[seenValue]bool
}

type seenValue struct {
	at uintptr
	of reflect.Type
}

// ours says whether values of a type are looked into: those of other modules keep what they like.
func ours(t reflect.Type) bool {
	return t.PkgPath() == "" || strings.HasPrefix(t.PkgPath(), "causeway/")
}

func (h *weighing) look(field string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		at := seenValue{v.Pointer(), v.Type()}
		if v.IsNil() || !ours(v.Type().Elem()) || h.seen[at] {
			return
		}
		h.seen[at] = true
		h.look(field, v.Elem())
	case reflect.Interface:
		if !v.IsNil() {
			h.look(field, v.Elem())
		}
	case reflect.Struct:
		if !ours(v.Type()) {
			return
		}
		for i := range v.NumField() {
			h.look(v.Type().String()+"."+v.Type().Field(i).Name, v.Field(i))
		}
	case reflect.Map:
		h.counts[field] += v.Len()
		for it := v.MapRange(); it.Next(); {
			h.look(field+"[]", it.Value())
		}
	case reflect.Slice, reflect.Array:
		if v.Kind() == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8 {
			// Bytes are contents.
			h.counts[field] += v.Len()
		}
		if holds(v.Type().Elem()) {
			for i := range v.Len() {
				h.look(field+"[]", v.Index(i))
			}
		}
	}
}

// holds says whether values of a type can keep others.
func holds(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Map, reflect.Slice, reflect.Array:
		return true
	}
	return false
}
