package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"
)

// FuzzDispatch gives a driver arbitrary records. Whatever arrives: no panic, bytes fields are
// private copies, data fields lie within the record, and what was accepted survives encoding and
// decoding.
func FuzzDispatch(f *testing.F) {
	f.Fuzz(func(t *testing.T, op uint16, rec []byte) {
		private := bytes.Clone(rec)
		sent := blobs{1: []byte("sent ahead"), 2: make([]byte, 64)}
		var d Dispatcher
		c := Call{Op: Op(op)}
		_, _, err := d.Dispatch(Unsupported{}, &c, rec, sent)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if !bytes.Equal(rec, private) {
			t.Fatal("the record was written to")
		}
		if d.Args() == nil {
			return // a blob was missing
		}
		again, err := AppendRecord(nil, Header{}, d.Args())
		if err != nil {
			t.Fatal(err)
		}
		want := reflect.ValueOf(d.Args()).Elem().Interface()
		got, err := Decode(c.Op, again, nil)
		if err != nil {
			t.Fatalf("%s: decode of an encoded record: %v", c.Op, err)
		}
		if g := reflect.ValueOf(got).Elem().Interface(); !equal(g, want) {
			t.Fatalf("%s: %+v became %+v", c.Op, want, g)
		}
	})
}

// equal is DeepEqual, with a NaN equal to itself.
func equal(a, b any) bool {
	if reflect.DeepEqual(a, b) {
		return true
	}
	v, w := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range v.NumField() {
		x, y := v.Field(i), w.Field(i)
		if x.Kind() == reflect.Float32 && x.Float() != x.Float() && y.Float() != y.Float() {
			continue
		}
		if !reflect.DeepEqual(x.Interface(), y.Interface()) {
			return false
		}
	}
	return true
}

// FuzzReply: no payload makes a reply's decoder panic or accept bytes from outside.
func FuzzReply(f *testing.F) {
	f.Fuzz(func(t *testing.T, op uint16, payload []byte) {
		r := NewReply(Op(op))
		if r == nil {
			return
		}
		if err := DecodeReply(payload, r); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		back := NewReply(Op(op))
		if err := DecodeReply(AppendReply(nil, r), back); err != nil || !equal(reflect.ValueOf(back).Elem().Interface(), reflect.ValueOf(r).Elem().Interface()) {
			t.Fatalf("%s: %+v became %+v (%v)", Op(op), r, back, err)
		}
	})
}

// TestSeeds keeps a seed of every operation in testdata/fuzz; with CAUSEWAY_WRITE_SEEDS=1 it writes
// them.
func TestSeeds(t *testing.T) {
	seed := func(target string, op Op, b []byte) {
		path := filepath.Join("testdata/fuzz", target, op.String())
		if os.Getenv("CAUSEWAY_WRITE_SEEDS") == "1" {
			text := "go test fuzz v1\nuint16(" + strconv.Itoa(int(op)) + ")\n[]byte(" + strconv.Quote(string(b)) + ")\n"
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("no seed for %s: run CAUSEWAY_WRITE_SEEDS=1 go test -run TestSeeds ./cuda/wire", op)
		}
	}
	for op := Op(1); op <= OpCount; op++ {
		a := NewArgs(op)
		simple(reflect.ValueOf(a).Elem())
		seed("FuzzDispatch", op, record(t, &Encoder{}, a))
		if r := NewReply(op); r != nil {
			simple(reflect.ValueOf(r).Elem())
			seed("FuzzReply", op, AppendReply(nil, r))
		}
	}
	blob := record(t, &Encoder{}, &ModuleLoadArgs{Module: 20, Image: []byte("sent ahead")})
	image := blob[RecordSize+4*3+8:] // module, two capacities, options
	binary.LittleEndian.PutUint32(image[4:], SpanBlob|1)
	a, err := Decode(OpModuleLoad, blob, blobs{1: []byte("sent ahead")})
	if err != nil || string(a.(*ModuleLoadArgs).Image) != "sent ahead" {
		t.Errorf("blob by hand: %+v %v", a, err)
	}
}

func simple(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Slice:
			f.SetBytes([]byte("bytes of the field"))
		case reflect.Float32:
			f.SetFloat(1.5)
		case reflect.Int32:
			f.SetInt(int64(i) - 1)
		default:
			f.SetUint(uint64(16 + i))
		}
	}
}
