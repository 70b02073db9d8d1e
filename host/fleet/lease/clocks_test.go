package lease

import (
	"reflect"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/fleet/claim"
)

// TestNoClocks: nothing that controller, GPU hosts and nodes say to each other names a time of
// somebody's clock, so clocks that differ change nothing. What lasts is measured by each on its own
// clock.
func TestNoClocks(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var look func(at string, of reflect.Type)
	look = func(at string, of reflect.Type) {
		if seen[of] {
			return
		}
		seen[of] = true
		switch {
		case of == reflect.TypeFor[time.Time]():
			t.Errorf("%s is a time", at)
		case of.Kind() == reflect.Struct:
			for i := range of.NumField() {
				look(at+"."+of.Field(i).Name, of.Field(i).Type)
			}
		case of.Kind() == reflect.Slice, of.Kind() == reflect.Pointer, of.Kind() == reflect.Map:
			look(at, of.Elem())
		}
	}
	for _, of := range []reflect.Type{reflect.TypeFor[api.FleetState](), reflect.TypeFor[api.Reservation](), reflect.TypeFor[claim.Lease](), reflect.TypeFor[api.LeaseWish]()} {
		look(of.String(), of)
	}
}
