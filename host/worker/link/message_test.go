package link_test

import (
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/link/linktest"
	"causeway/host/worker/offer"
	"causeway/remote"
)

// samples are those of both directions by their kinds' numbers.
func samples(t testing.TB, fd int) map[uint32]link.Message {
	t.Helper()
	list := map[uint32]link.Message{}
	add := func(m link.Message) {
		b, _, err := link.Encode(m)
		if err != nil {
			t.Fatalf("%T: %v", m, err)
		}
		n := binary.LittleEndian.Uint32(b)
		if list[n] != nil {
			t.Errorf("%T and %T are both of kind %d", m, list[n], n)
		}
		list[n] = m
	}
	for _, m := range linktest.ToWorker(fd) {
		add(m)
	}
	for _, m := range linktest.ToParent(fd) {
		add(m)
	}
	return list
}

// TestKinds: each kind has a name of its own and a sample, none of whose fields is zero, or it
// would not show whether it travels.
func TestKinds(t *testing.T) {
	list := samples(t, 5)
	names := map[string]bool{}
	for _, k := range link.Kinds() {
		m := list[k.Number]
		switch {
		case m == nil:
			t.Errorf("no sample of kind %q", k.Name)
			continue
		case k.Name == "" || names[k.Name]:
			t.Errorf("the name %q of %T", k.Name, m)
		case link.Name(m) != k.Name:
			t.Errorf("%T is called %q and %q", m, link.Name(m), k.Name)
		}
		names[k.Name] = true
		delete(list, k.Number)
		if path := zeroField(reflect.ValueOf(m)); path != "" {
			t.Errorf("the sample of %q has no %s", k.Name, path)
		}
	}
	for _, m := range list {
		t.Errorf("%T is in no table", m)
	}
}

// zeroField names an exported field that is zero.
func zeroField(v reflect.Value) string {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch {
		case !f.IsExported(), f.Tag.Get("json") == "-":
			continue
		case v.Field(i).IsZero():
			return f.Name
		case f.Type.Kind() == reflect.Struct:
			if path := zeroField(v.Field(i)); path != "" {
				return f.Name + "." + path
			}
		}
	}
	return ""
}

// TestRoundTrip: what was sent is what comes, field by field.
func TestRoundTrip(t *testing.T) {
	for n, m := range samples(t, 5) {
		b, files, err := link.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := link.Decode(n > 100, b, files)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%s: %+v became %+v, %v", link.Name(m), m, got, err)
		}
		clear(b) // the reader's buffer, which the next packet overwrites
		if err == nil && !reflect.DeepEqual(got, m) {
			t.Errorf("%s: %+v lies in the packet", link.Name(m), got)
		}
	}
}

// TestSizes holds the decoder against the table: a byte or a descriptor more or less than a kind
// has is none of it.
func TestSizes(t *testing.T) {
	list := samples(t, 5)
	refused := func(k link.Kind, what string, b []byte, files int) {
		t.Helper()
		if m, _, err := link.Decode(k.Parent, b, nullFiles(t, files)); !errors.Is(err, link.ErrMessage) {
			t.Errorf("%s with %s: %+v, %v", k.Name, what, m, err)
		}
	}
	for _, k := range link.Kinds() {
		b, _, _ := link.Encode(list[k.Number])
		if k.Fixed > 0 {
			refused(k, "a byte too few", b[:4+k.Fixed-1], k.Files)
		}
		refused(k, "too many bytes", append(slices.Clone(b[:4]), make([]byte, k.Fixed+k.Tail+max(k.Unit, 1))...), k.Files)
		if k.Unit > 1 {
			refused(k, "half an element", b[:len(b)-1], k.Files)
		}
		if k.Files > 0 {
			refused(k, "a descriptor too few", b, k.Files-1)
		}
		refused(k, "too many descriptors", b, k.Most+1)
	}
	for _, b := range [][]byte{nil, {1}, {1, 0, 0}, {0, 0, 0, 0}, {255, 255, 255, 255}, {100, 0, 0, 0}} {
		for _, parent := range []bool{false, true} {
			if m, _, err := link.Decode(parent, b, nil); !errors.Is(err, link.ErrMessage) {
				t.Errorf("%v: %+v, %v", b, m, err)
			}
		}
	}
}

// nullFiles opens descriptors that Decode takes over.
func nullFiles(t testing.TB, n int) (files []int) {
	t.Helper()
	for range n {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, fd)
	}
	return files
}

// TestBounds: what an honest end would not say is refused, by the reader's side although the
// writer's types can hold it.
func TestBounds(t *testing.T) {
	const page = 4096
	region := func(gpa, size, off uint64) link.Message {
		return link.AddMemory{Memory: []link.BackedMemory{{MemoryRegion: link.MemoryRegion{GPA: gpa, Size: size, Offset: off}, File: 5}}}
	}
	pages := func(at uint64, es ...link.Range) link.Message { return link.AddPages{Region: 1, At: at, Ranges: es} }
	before := descriptors(t)
	for name, m := range map[string]link.Message{
		"memory of no size":           region(page, 0, 0),
		"memory that wraps":           region(1<<63, 1<<63+page, 0),
		"memory past a file":          region(0, page, 1<<63-page+1),
		"region of no size":           link.AddRegion{Region: 1, VA: page},
		"region of half a page":       link.AddRegion{Region: 1, VA: page, Size: page / 2},
		"region off a page":           link.AddRegion{Region: 1, VA: 8, Size: page},
		"region that wraps":           link.AddRegion{Region: 1, VA: -page & (1<<64 - 1), Size: 2 * page},
		"pages off a page":            pages(7, link.Range{GPA: page, Size: page}),
		"half a page":                 pages(0, link.Range{GPA: page, Size: page / 2}),
		"no page":                     pages(0, link.Range{GPA: page}),
		"pages that wrap":             pages(0, link.Range{GPA: -page & (1<<64 - 1), Size: 2 * page}),
		"page kind 0":                 link.SharePages{Pages: []link.Page{{Kind: 0, File: 5}}},
		"page kind 7":                 link.SharePages{Pages: []link.Page{{Kind: 7, File: 5}}},
		"slot that is none":           link.Wake{Slot: remote.SlotCount + 1},
		"no carrier":                  link.Configure{Connection: link.FileOf(5)},
		"unix without a connection":   link.Configure{Config: link.Config{Carrier: link.CarrierUnix}},
		"virtiofs with a connection":  link.Configure{Config: link.Config{Carrier: link.CarrierVirtiofs}, Connection: link.FileOf(5)},
		"virtiofs adopts without one": link.Configure{Config: link.Config{Carrier: link.CarrierVirtiofs, Adopt: true}},
		"start without its doorbell":  link.Start{},
		"rebuild without its stream":  link.Rebuild{},
		"too much shared":             link.Offer{Blob: make([]byte, offer.MaxBlob+1)},
		"too many ranges":             pages(0, make([]link.Range, link.MaxRanges+1)...),
		"too many devices":            link.Measured{Use: link.Use{Devices: make([]link.DeviceUse, 257)}},
		"a configuration without end": link.Warm{Config: link.Config{Peer: strings.Repeat("x", link.MaxConfig)}},
	} {
		b, files, err := link.Encode(m)
		if err == nil {
			_, parent := m.(link.ToParent)
			_, _, err = link.Decode(parent, b, nullFiles(t, len(files)))
		}
		if !errors.Is(err, link.ErrMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		m  link.Message
		at int
		to byte
	}{
		"a flag of 2":                 {pages(0), 4 + 12, 2},
		"a text that is not UTF-8":    {link.Started{Status: link.Status{Text: "abc"}}, 4 + 4, 0xff},
		"more devices than are there": {link.Measured{Use: link.Use{Devices: make([]link.DeviceUse, 2)}}, 4 + 4, 3},
		"devices without end":         {link.Measured{}, 4 + 7, 0xff},
	} {
		b, _, err := link.Encode(c.m)
		if err != nil {
			t.Fatal(err)
		}
		b[c.at] = c.to
		_, parent := c.m.(link.ToParent)
		if m, _, err := link.Decode(parent, b, nil); !errors.Is(err, link.ErrMessage) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestTexts: errors and programs' names are cut and made text, not refused: a guest chooses them.
func TestTexts(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, m := range []link.ToParent{
		link.Started{Status: link.Status{Errno: unix.EIO, Text: long}},
		link.Rebuilt{Status: link.StatusOf(unix.EIO, errors.New("a\xffb"))},
		link.Measured{Use: link.Use{Program: strings.Repeat("ü", 4096)}},
		link.Measured{Use: link.Use{Program: "\x80\x81" + long}},
	} {
		b, _, err := link.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := link.Decode(true, b, nil); err != nil {
			t.Error(err)
		}
	}
	if err := (link.Status{Text: "ignored"}).Err(); err != nil {
		t.Errorf("success is %v", err)
	}
	if err := link.StatusOf(unix.EIO, errors.New("why")).Err(); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "why") {
		t.Error(err)
	}
}

// FuzzMessage is a packet with descriptors that either end is sent. It is refused, or means the
// same when it is said again; what comes with it is closed either way, and nothing of it is kept
// that its kind has no room for.
func FuzzMessage(f *testing.F) {
	for n, m := range samples(f, 0) {
		b, files, err := link.Encode(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(n > 100, b, byte(len(files)))
	}
	f.Fuzz(func(t *testing.T, parent bool, b []byte, files byte) {
		if len(b) > 2*link.MaxPacket {
			return
		}
		before := descriptors(t)
		m, discard, err := link.Decode(parent, b, nullFiles(t, int(files%16)))
		if err != nil {
			if !errors.Is(err, link.ErrMessage) {
				t.Errorf("%v", err)
			}
		} else {
			again(t, parent, m, b)
			discard()
		}
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

// again says m, which came as b, once more.
func again(t *testing.T, parent bool, m link.Message, b []byte) {
	c, files, err := link.Encode(m)
	if err != nil {
		t.Fatalf("%+v cannot be said: %v", m, err)
	}
	n, _, err := link.Decode(parent, c, files)
	if err != nil {
		t.Fatalf("%+v cannot be heard again: %v", m, err)
	}
	switch m.(type) {
	case link.Configure, link.Warm, link.Divert, link.Rehearse: // JSON has many ways to say a thing
		if d, _, err := link.Encode(n); err != nil || string(c) != string(d) {
			t.Errorf("%s became %s, %v", c, d, err)
		}
	default:
		if string(c) != string(b) || !reflect.DeepEqual(n, m) {
			t.Errorf("%+v, which was %x, became %+v, which is %x", m, b, n, c)
		}
	}
}
