package link

import (
	"reflect"
	"strings"
	"testing"
)

func TestUse(t *testing.T) {
	want := Use{PID: 7, Program: "/bin/x", Devices: []DeviceUse{{UUID: [16]byte{1, 2}, Bytes: 1 << 40}}}
	b, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeUse(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	long := Use{Program: strings.Repeat("x", MaxPayload)}
	if b, err := long.Encode(); err != nil || len(b) > MaxPayload {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// FuzzDecodeUse: what a worker says is an answer or an error, and means the same when it is said again.
func FuzzDecodeUse(f *testing.F) {
	f.Add([]byte(`{"pid":7,"program":"x","devices":[{"uuid":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"bytes":5}]}`))
	f.Add([]byte(`{"devices":[{"uuid":[1]}]}`))
	f.Add([]byte(`{"pid":-1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := DecodeUse(b)
		if err != nil || len(u.Program) > maxProgram {
			return
		}
		again, err := u.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if v, err := DecodeUse(again); err != nil || v.PID != u.PID || len(v.Devices) != len(u.Devices) {
			t.Errorf("%+v became %+v, %v", u, v, err)
		}
	})
}
