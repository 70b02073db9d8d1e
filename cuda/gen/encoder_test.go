package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"causeway/cuda/idl"
	"causeway/cuda/wire"
)

// The C encoders run against a session that writes records to a file and answers from files; Go
// decodes what they wrote and encodes what they read. Values of fields follow from their place
// alone.

const fakeSession = `#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gen/ops.h"
#include "session/session.h"

static uint64_t buffer[CW_MAX_RECORD / 8];
static uint8_t reply[1 << 16];
static FILE *out;

CUresult cw_begin(struct cw_tx *tx, uint16_t op, uint32_t fixed, uint32_t var, int wait)
{
	struct cw_record *r = (struct cw_record *)buffer;
	memset(buffer, 0, sizeof buffer);
	tx->rec = (uint8_t *)buffer;
	tx->size = (uint32_t)sizeof *r + fixed + var;
	if (tx->size > CW_MAX_RECORD)
		abort();
	r->size = tx->size;
	r->op = op;
	r->flags = wait ? CW_RECORD_REPLY : 0;
	return 0;
}

CUresult cw_commit(struct cw_tx *tx)
{
	fwrite(tx->rec, 1, tx->size, out);
	return 0;
}

CUresult cw_commit_wait(struct cw_tx *tx, struct cw_reply *rep)
{
	char name[32];
	cw_commit(tx);
	memset(rep, 0, sizeof *rep);
	snprintf(name, sizeof name, "%u", ((struct cw_record *)tx->rec)->op);
	FILE *f = fopen(name, "rb");
	if (f) {
		rep->len = fread(reply, 1, sizeof reply, f);
		rep->data = reply;
		fclose(f);
	}
	return 0;
}

void cw_reply_release(struct cw_reply *rep) { rep->data = NULL; }

_Atomic uint64_t cw_copies = 1;
int cw_apart(const void **p, size_t n, void **own)
{
	*own = n ? malloc(n) : NULL;
	if (*own)
		*p = memcpy(*own, *p, n);
	return 1;
}

CUresult cw_blob_send(const void *p, size_t len, uint32_t *blob)
{
	FILE *f = fopen("blob", "wb");
	fwrite(p, 1, len, f);
	fclose(f);
	*blob = 7;
	return 0;
}

int main(void)
{
	static char big[100000];
	char buf[64];
	size_t len;
	out = fopen("records", "wb");
	memset(big, 'b', sizeof big);
`

func value(o *idl.Op, i int) int { return o.Num*100 + i }

func cCall(b *strings.Builder, o *idl.Op) {
	var args, prints []string
	for i, fd := range o.In {
		switch {
		case fd.Span():
			s := o.Name + "." + fd.Name
			args = append(args, fmt.Sprintf("%q, %d", s, len(s)))
		case fd.Type == "u64":
			args = append(args, fmt.Sprintf("%dull << 32", value(o, i)))
		default:
			args = append(args, fmt.Sprint(value(o, i)))
		}
	}
	fmt.Fprintf(b, "\t{\n")
	for i, fd := range o.Out {
		if fd.Span() {
			args = append(args, "buf, sizeof buf, &len")
			prints = append(prints, fmt.Sprintf("printf(\"%s.%s %%.*s %%zu\\n\", (int)len, buf, len);", o.Name, fd.Name))
			continue
		}
		fmt.Fprintf(b, "\t\t%s v%d = 0;\n", cType(fd.Type), i)
		args = append(args, fmt.Sprintf("&v%d", i))
		prints = append(prints, fmt.Sprintf("printf(\"%s.%s %%.0f\\n\", (double)v%d);", o.Name, fd.Name, i))
	}
	fmt.Fprintf(b, "\t\tCUresult r = cwop_%s(%s);\n\t\tif (r) return printf(\"%s: %%d\\n\", r);\n", o.Name, strings.Join(args, ", "), o.Name)
	for _, p := range prints {
		fmt.Fprintf(b, "\t\t%s\n", p)
	}
	b.WriteString("\t}\n")
}

// fields sets every field of a request or reply to what cCall uses, and lists a reply's as the
// program prints them.
func fields(v reflect.Value, o *idl.Op, list []idl.Field) (printed []string) {
	for i, fd := range list {
		f, name := v.Field(i), o.Name+"."+fd.Name
		switch f.Kind() {
		case reflect.Slice:
			f.SetBytes([]byte(name))
			printed = append(printed, fmt.Sprintf("%s %s %d", name, name, len(name)))
			continue
		case reflect.Float32:
			f.SetFloat(float64(value(o, i)))
		case reflect.Int32:
			f.SetInt(int64(value(o, i)))
		case reflect.Uint64:
			f.SetUint(uint64(value(o, i)) << 32)
		default:
			f.SetUint(uint64(value(o, i)))
		}
		printed = append(printed, fmt.Sprintf("%s %.0f", name, f.Convert(reflect.TypeFor[float64]()).Float()))
	}
	return printed
}

func TestEncoders(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		missing(t, "no gcc: run scripts/setup.sh")
	}
	f, dir := description(t), t.TempDir()
	var src strings.Builder
	src.WriteString(fakeSession)
	var prints []string
	var ops []*idl.Op
	for i := range f.Ops {
		o := &f.Ops[i]
		if o.Bare {
			continue
		}
		ops = append(ops, o)
		cCall(&src, o)
		if r := wire.NewReply(wire.Op(o.Num)); r != nil {
			prints = append(prints, fields(reflect.ValueOf(r).Elem(), o, o.Out)...)
			write(t, filepath.Join(dir, fmt.Sprint(o.Num)), wire.AppendReply(nil, r))
		}
	}
	src.WriteString("\tif (cwop_LibraryLoad(1, 2, 3, \"jit\", 3, big, sizeof big, NULL, NULL, NULL, NULL, NULL, 0, NULL)) return 1;\n")
	src.WriteString("\tif (cwop_MemcpyHtoD(1, 2, big, sizeof big) != CUDA_ERROR_INVALID_VALUE) return 2;\n\treturn fclose(out);\n}\n")
	write(t, filepath.Join(dir, "main.c"), []byte(src.String()))

	lib, err := filepath.Abs(filepath.Join(root, "guest/libcuda"))
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-w", "-I"+lib, "main.c", filepath.Join(lib, "gen/ops.c"), "-o", "main")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := exec.Command("./main")
	run.Dir = dir
	out, err := run.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := strings.Split(strings.TrimSpace(string(out)), "\n"); !reflect.DeepEqual(got, prints) {
		for i := range min(len(got), len(prints)) {
			if got[i] != prints[i] {
				t.Errorf("C read %q, want %q", got[i], prints[i])
			}
		}
		t.Errorf("C printed %d lines, want %d", len(got), len(prints))
	}
	records := read(t, filepath.Join(dir, "records"))
	for _, o := range ops {
		var a wire.Args
		a, records = next(t, records, nil)
		want := wire.NewArgs(wire.Op(o.Num))
		fields(reflect.ValueOf(want).Elem(), o, o.In)
		if !reflect.DeepEqual(a, want) {
			t.Errorf("C wrote %+v, want %+v", a, want)
		}
	}
	a, rest := next(t, records, blob{7: read(t, filepath.Join(dir, "blob"))})
	if l, ok := a.(*wire.LibraryLoadArgs); !ok || len(l.Image) != 100000 || string(l.Jit) != "jit" || len(rest) != 0 {
		t.Errorf("a long image: %T with %d bytes behind", a, len(rest))
	}
}

type blob map[uint32][]byte

func (m blob) Take(id, size uint32) ([]byte, bool) { return m[id], len(m[id]) == int(size) }

// next decodes the first record of b.
func next(t *testing.T, b []byte, blobs wire.BlobSource) (wire.Args, []byte) {
	t.Helper()
	if len(b) < wire.RecordSize {
		t.Fatalf("%d bytes left", len(b))
	}
	n := binary.LittleEndian.Uint32(b)
	_, op, err := wire.ParseHeader(b[:n])
	if err != nil {
		t.Fatal(err)
	}
	a, err := wire.Decode(op, b[:n], blobs)
	if err != nil {
		t.Fatal(err)
	}
	return a, b[n:]
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
