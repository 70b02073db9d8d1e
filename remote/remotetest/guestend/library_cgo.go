package guestend

/*
#cgo CFLAGS: -I${SRCDIR}/../../../guest/libcuda
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "session/tests/verbs/provider.h"

struct ends {
	int (*open)(const char *carrier, const char *target, const char *sysfs, void **base, char *why, size_t cap);
	void (*publish)(void);
	int (*sleep)(uint32_t slot, void *word);
	void (*watch)(void);
	void *(*add)(uint32_t id, size_t size);
	int (*drop)(uint32_t id);
	void (*close)(void);
	void (*abandon)(void);
};

static void *load(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }

static const char *find(void *lib, struct ends *e)
{
	const char *const names[] = {"end_open", "end_publish", "end_sleep", "end_watch", "end_add", "end_drop", "end_close", "end_abandon"};
	void **at = (void **)e;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!(at[i] = dlsym(lib, names[i])))
			return names[i];
	return NULL;
}

static int end_open(struct ends *e, const char *carrier, const char *target, const char *sysfs, void **base, char *why, size_t cap)
{
	return e->open(carrier, target, sysfs, base, why, cap);
}
static void end_publish(struct ends *e) { e->publish(); }
static int end_sleep(struct ends *e, uint32_t slot, void *word) { return e->sleep(slot, word); }
static void end_watch(struct ends *e) { e->watch(); }
static void *end_add(struct ends *e, uint32_t id, size_t size) { return e->add(id, size); }
static int end_drop(struct ends *e, uint32_t id) { return e->drop(id); }
static void end_close(struct ends *e) { e->close(); }
static void end_abandon(struct ends *e) { e->abandon(); }

static struct fake_verbs *fake(void *lib) { return dlsym(lib, "fake_verbs"); }
static void flap(struct fake_verbs *f, long each)
{
	atomic_store(&f->works, 0);
	atomic_store(&f->made, 0);
	atomic_store(&f->flaps, each);
}
static long lost(struct fake_verbs *f) { return atomic_load(&f->lost); }
static long refused(struct fake_verbs *f) { return atomic_load(&f->refused); }
static int pkey(struct fake_verbs *f) { return atomic_load(&f->pkey); }
*/
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/remotetest"
)

// Library is the guest library with its ends, for the life of the process.
type Library struct {
	c    *C.struct_ends
	used atomic.Bool
}

func dlopen(path string) (unsafe.Pointer, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	lib := C.load(name)
	if lib == nil {
		return nil, fmt.Errorf("%s: %s", path, C.GoString(C.dlerror()))
	}
	return lib, nil
}

// Load loads it. Its sessions are this process's.
func Load(path string) (*Library, error) {
	lib, err := dlopen(path)
	if err != nil {
		return nil, err
	}
	l := &Library{c: (*C.struct_ends)(C.calloc(1, C.sizeof_struct_ends))}
	if missing := C.find(lib, l.c); missing != nil {
		return nil, fmt.Errorf("%s has no %s", path, C.GoString(missing))
	}
	return l, nil
}

// Fabric is a libibverbs of the tests' (guest/libcuda/session/tests/verbs), which is there from now
// on: whoever loads one of its name has it.
type Fabric struct{ c *C.struct_fake_verbs }

// Preload loads it.
func Preload(path string) (*Fabric, error) {
	lib, err := dlopen(path)
	if err != nil {
		return nil, err
	}
	f := &Fabric{C.fake(lib)}
	if f.c == nil {
		return nil, fmt.Errorf("%s is none of the tests'", path)
	}
	return f, nil
}

// Flap has each so manyth work request from now on fail, by turns before it is done, and when it is
// and only word of that is lost, and each seventh queue pair not be made. 0: none.
func (f *Fabric) Flap(each int) { C.flap(f.c, C.long(each)) }

// Lost is how many work requests Flap has had fail, and Refused how many queue pairs not be made.
func (f *Fabric) Lost() int { return int(C.lost(f.c)) }

// Refused is described with Lost.
func (f *Fabric) Refused() int { return int(C.refused(f.c)) }

// Partition is where in its port's table the partition of the queue pair stands that was readied
// last.
func (f *Fabric) Partition() int { return int(C.pkey(f.c)) }

// errUsed says that a test has not ended its session.
var errUsed = errors.New("the guest library has a session")

// end implements remotetest.Carrier by the library.
type end struct {
	l      *Library
	pushes bool
	gone   chan struct{}
	wg     sync.WaitGroup
	mu     sync.Mutex // regions
}

// connect opens a session by one of its carriers, to a host whose address or socket target is.
// sysfs, if not empty, is where RDMA devices are shown.
func (l *Library) connect(carrier, target, sysfs string) (*remotetest.Guest, error) {
	if !l.used.CompareAndSwap(false, true) {
		return nil, errUsed
	}
	text := [3]*C.char{C.CString(carrier), C.CString(target), C.CString(sysfs)}
	var why [256]C.char
	base := (*unsafe.Pointer)(C.calloc(1, C.size_t(unsafe.Sizeof(uintptr(0)))))
	defer C.free(unsafe.Pointer(base))
	n := C.end_open(l.c, text[0], text[1], text[2], base, &why[0], C.size_t(len(why)))
	for _, t := range text {
		C.free(unsafe.Pointer(t))
	}
	if n != 0 {
		l.used.Store(false)
		said := C.GoString(&why[0])
		err := fmt.Errorf("%s: %s: %w", carrier, said, unix.Errno(-n))
		if strings.Contains(said, "refused the session") {
			err = fmt.Errorf("%w: %w", remotetest.ErrRefused, err)
		}
		return nil, err
	}
	e := &end{l: l, pushes: carrier != "unix", gone: make(chan struct{})}
	g := remotetest.New(unsafe.Slice((*byte)(*base), remote.Region0Size), e)
	e.wg.Go(func() {
		C.end_watch(l.c)
		close(e.gone)
		g.WakeAll()
	})
	return g, nil
}

// Pushes implements remotetest.Pusher.
func (e *end) Pushes() bool { return e.pushes }

// Ring implements remotetest.Carrier.
func (e *end) Ring() { C.end_publish(e.l.c) }

// Sleep implements remotetest.Carrier.
func (e *end) Sleep(slot uint32, word *atomic.Uint32) {
	C.end_sleep(e.l.c, C.uint32_t(slot), unsafe.Pointer(word))
}

// Gone implements remotetest.Carrier.
func (e *end) Gone() <-chan struct{} { return e.gone }

// AddRegion implements remotetest.Carrier.
func (e *end) AddRegion(id uint32, size int) ([]byte, uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := C.end_add(e.l.c, C.uint32_t(id), C.size_t(size))
	if p == nil {
		return nil, 0, fmt.Errorf("the library adds no region of %d bytes", size)
	}
	return unsafe.Slice((*byte)(p), size), uint64(uintptr(p)), nil
}

// EndRegion implements remotetest.Carrier.
func (e *end) EndRegion(id uint32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := C.end_drop(e.l.c, C.uint32_t(id)); n != 0 {
		return fmt.Errorf("region %d: %w", id, unix.Errno(-n))
	}
	return nil
}

// Close implements remotetest.Carrier.
func (e *end) Close() error {
	C.end_close(e.l.c)
	e.wg.Wait()
	C.end_abandon(e.l.c)
	e.l.used.Store(false)
	return nil
}
