package device_test

import (
	gocontext "context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"causeway/host/device"
	"causeway/host/driver"
	"causeway/host/driver/drivertest"
	"causeway/host/sandbox"
	"causeway/host/sandbox/takeover"
	"causeway/host/worker"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/host/worker/workertest"
	"causeway/remote"
	"causeway/remote/remotetest"
	"causeway/remote/shm"
	"causeway/vhostuser"
	"causeway/virtio/fs/fstest"
	"causeway/virtio/virtiotest"
)

// workerEnv makes this test binary a worker process.
const workerEnv = "CAUSEWAY_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		policy, err := sandbox.FromEnv()
		if err == nil {
			_, err = sandbox.Enter(policy, slog.Default())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "test worker:", err)
			os.Exit(1)
		}
		p := &worker.Process{
			Seal: func() error { return sandbox.Seal(policy) },
			Backend: func(gpu string) (driver.Backend, error) {
				if err := takeover.FromEnv(os.Stderr); err != nil {
					return nil, err
				}
				if b, err, ours := realBackend(gpu); ours {
					return b, err
				}
				if gpu == "busy" {
					return busy{&drivertest.Backend{}}, nil
				}
				return &drivertest.Backend{}, nil
			},
			Logger: func(l slog.Level) *slog.Logger {
				return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
			},
		}
		if err := p.Main(context(), spawn.LinkFD); err != nil {
			fmt.Fprintln(os.Stderr, "test worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// vm is a guest kernel on a device of its own.
type vm struct {
	apart string // what its programs say of why they go by the host
	*fstest.Guest
	t      *testing.T
	cancel func()
	served chan error
	socket string
	device *device.Device
	whole  bool // programs have their memory in one piece, not scattered
}

func boot(t *testing.T) *vm {
	t.Helper()
	return bootGPU(t, "test")
}

// promptly has a worker under the race detector end when it ends: by default that sleeps for a
// second first.
const promptly = "GORACE=atexit_sleep_ms=0"

// busy is a GPU that never finishes what it does.
type busy struct{ driver.Backend }

func (b busy) Open(h driver.Host, o driver.Options) (driver.Session, error) {
	s, err := b.Backend.Open(h, o)
	if err != nil {
		return nil, err
	}
	return busySession{s}, nil
}

type busySession struct{ driver.Session }

func (busySession) Quiesce(ctx gocontext.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// bootGPU is boot with a GPU of the worker's: test or busy.
func bootGPU(t *testing.T, gpu string) *vm {
	t.Helper()
	return bootWith(t, func(o *device.Options) { o.Worker.GPU = gpu })
}

// bootWith is boot of a device with other options.
func bootWith(t *testing.T, change func(*device.Options)) *vm {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "libcuda.so.1"), []byte("ELF, so to speak"), 0o644); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(testWriter{t}, nil))
	o := device.Options{
		Tree:    device.Tree{Lib: dir, Version: "test", GPU: "Test GPU"},
		Worker:  link.Config{GPU: "test"},
		Spawner: &spawn.Spawner{Command: []string{"/proc/self/exe"}, Env: append(os.Environ(), workerEnv+"=1", promptly), NoNewPrivs: true},
		Machine: machine,
		Log:     log,
		// A program here renews when its process gets to it, which beside others may take seconds.
		LoanTerm: 10 * time.Second,
	}
	change(&o)
	d, err := device.New(o)
	if err != nil {
		t.Fatal(err)
	}
	v := &vm{t: t, device: d, served: make(chan error, 1), socket: filepath.Join(dir, "vm.sock")}
	ln, err := vhostuser.Listen(v.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := cancellable()
	v.cancel = cancel
	go func() { v.served <- d.Serve(ctx, ln) }()
	v.connect()
	t.Cleanup(func() {
		cancel()
		if err := await(t, "the device does not end", v.served); err != nil {
			t.Error(err)
		}
		if v.Guest != nil {
			_ = v.Kill()
		}
		noChildren(t)
	})
	return v
}

// connect boots a guest. One that has just been killed may be there still, for longer than the
// device has a new front end wait.
func (v *vm) connect() {
	v.t.Helper()
	for late := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		g, err := fstest.Connect(v.socket, fstest.Options{})
		if err == nil {
			v.Guest = g
			return
		}
		if time.Now().After(late) {
			v.t.Fatal(err)
		}
	}
}

// lapses is for tests of programs that do not renew: what they have lent comes back as soon as a
// guest's kernel may rely on.
func lapses(o *device.Options) { o.LoanTerm = 0 }

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p[:len(p)-1])
	return len(p), nil
}

// noChildren fails if a worker process is left.
func noChildren(t *testing.T) {
	t.Helper()
	eventually(t, "a worker process is left", func() bool {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if errors.Is(err, unix.ECHILD) {
				return true
			}
			if pid == 0 {
				return false
			}
		}
	})
}

// process is a guest process: it lends memory and renews.
type process struct {
	vm   *vm
	file *fstest.File
	mem  *shm.Memory // its view of its own pages

	mu      sync.Mutex
	pieces  map[int64][]virtiotest.Buffer // by file offset
	calls   map[int64]*fstest.Call
	stopped bool                  // renews nothing
	spare   [][]virtiotest.Buffer // pages of waits that are over
	once    sync.Once
	ends    chan struct{}
	gone    chan struct{}
	wg      sync.WaitGroup
}

const pieceSize = 256 << 10

// exec opens a session and returns its guest end.
func (v *vm) exec(pid uint32) (*process, *workertest.Guest, error) {
	f, err := v.Open(syscall.O_RDWR, fuse.Caller{Pid: pid}, "session")
	if err != nil {
		return nil, nil, err
	}
	p := &process{vm: v, file: f, mem: shm.NewMemory(), pieces: map[int64][]virtiotest.Buffer{}, calls: map[int64]*fstest.Call{},
		ends: make(chan struct{}), gone: make(chan struct{})}
	mem, err := p.allocate(0, int(remote.Region0Size))
	if err != nil {
		return nil, nil, err
	}
	remotetest.Prepare(mem)
	hello := remote.FormatHello(remote.Hello{Type: remote.MsgHello, Va: remotetest.Address(mem), Size: remote.Region0Size}, v.apart)
	if _, err := p.file.WriteBytes(hello, int64(remote.FileControl)); err != nil {
		return p, nil, err
	}
	if err := p.loan(0, int(remote.Region0Size)); err != nil {
		return p, nil, err
	}
	p.wg.Go(p.routineRenew)
	v.t.Cleanup(p.halt) // before the VM's memory goes
	if err := p.control(remote.Hello{Type: remote.MsgStart}); err != nil {
		return p, nil, err
	}
	g := workertest.New(remotetest.New(mem, p))
	_, err = g.Init()
	return p, g, err
}

// pages are free pages of guest memory.
func (v *vm) pages(n int) []virtiotest.Buffer {
	if !v.whole {
		return v.Pages(n)
	}
	gpa, b := v.Mem.Alloc(uint64(n)*4096, 4096)
	out := make([]virtiotest.Buffer, n)
	for i := range out {
		out[i] = virtiotest.Buffer{GPA: gpa + uint64(i)*4096, Bytes: b[i*4096:][:4096]}
	}
	return out
}

// allocate takes scattered guest pages, and maps them here in one piece.
func (p *process) allocate(id uint32, size int) ([]byte, error) {
	fd, err := p.vm.Mem.DupFD()
	if err != nil {
		return nil, err
	}
	if err := p.mem.Declare(id, remote.Declared{Size: uint64(size)}, func() error { return unix.Close(fd) }); err != nil {
		return nil, err
	}
	var runs []shm.Run
	for off := 0; off < size; off += pieceSize {
		pages := p.vm.pages(min(pieceSize, size-off) / 4096)
		p.pieces[loanAt(id, off)] = pages
		for _, b := range pages {
			runs = append(runs, shm.Run{FD: fd, Offset: int64(b.GPA - p.vm.Mem.GPA), Size: 4096})
		}
	}
	if err := p.mem.SetRuns(id, runs); err != nil {
		return nil, err
	}
	return p.mem.Map(id, 0)
}

func loanAt(id uint32, off int) int64 {
	return int64(remote.FileLoan | uint64(id)<<44 | uint64(off))
}

func (p *process) control(h remote.Hello) error {
	_, err := p.file.WriteBytes(remote.FormatHello(h, ""), int64(remote.FileControl))
	return err
}

func (p *process) loan(id uint32, size int) error {
	for off := 0; off < size; off += pieceSize {
		if err := p.read(loanAt(id, off)); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) read(at int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, err := p.file.Read(0, at, p.pieces[at])
	if err == nil {
		p.calls[at] = c
	}
	return err
}

// routineRenew renews each loan every half second, or at once when it was completed.
func (p *process) routineRenew() {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	last := time.Now()
	for {
		select {
		case <-p.ends:
			return
		case <-t.C:
		}
		p.mu.Lock()
		stopped := p.stopped
		var due []int64
		for at, c := range p.calls {
			select {
			case <-c.Done():
				due = append(due, at)
			default:
				if time.Since(last) > 500*time.Millisecond {
					due = append(due, at)
				}
			}
		}
		if time.Since(last) > 500*time.Millisecond {
			last = time.Now()
		}
		p.mu.Unlock()
		if stopped {
			continue
		}
		for _, at := range due {
			if p.read(at) != nil {
				// The queue is full, for the VM stands: the next time, as a kernel's requests wait
				// for room.
				break
			}
		}
	}
}

// halt ends the renewing.
func (p *process) halt() {
	p.once.Do(func() { close(p.ends) })
	p.wg.Wait()
}

// pending counts READs that hold pages.
func (p *process) pending() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, c := range p.calls {
		select {
		case <-c.Done():
		default:
			n++
		}
	}
	return n
}

// stop is SIGSTOP, or SIGKILL.
func (p *process) stop(yes bool) {
	p.mu.Lock()
	p.stopped = yes
	p.mu.Unlock()
}

// Ring implements remotetest.Carrier.
func (p *process) Ring() { _, _ = p.file.WriteBytes(make([]byte, 8), int64(remote.FileDoorbell)) }

// Sleep implements remotetest.Carrier.
func (p *process) Sleep(slot uint32, word *atomic.Uint32) {
	p.mu.Lock()
	var page []virtiotest.Buffer
	if n := len(p.spare); n > 0 { // a program sleeps many times, and the VM is small
		page, p.spare = p.spare[n-1], p.spare[:n-1]
	} else {
		page = p.vm.Pages(1)
	}
	p.mu.Unlock()
	c, err := p.file.Read(0, int64(remote.FileWait|uint64(slot)<<12), page)
	if err != nil { // the queue is full
		p.mu.Lock()
		p.spare = append(p.spare, page)
		p.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		return
	}
	_, errno, err := c.Wait(time.Minute)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.spare = append(p.spare, page)
	}
	if errno != 0 {
		select {
		case <-p.gone:
		default:
			close(p.gone)
		}
	}
}

// Gone implements remotetest.Carrier.
func (p *process) Gone() <-chan struct{} { return p.gone }

// AddRegion implements remotetest.Carrier.
func (p *process) AddRegion(id uint32, size int) ([]byte, uint64, error) {
	p.mu.Lock()
	mem, err := p.allocate(id, size)
	p.mu.Unlock()
	if err != nil {
		return nil, 0, err
	}
	if err := p.control(remote.Hello{Type: remote.MsgRegion, Region: id, Va: remotetest.Address(mem), Size: uint64(size)}); err != nil {
		return nil, 0, err
	}
	return mem, remotetest.Address(mem), p.loan(id, size)
}

// EndRegion implements remotetest.Carrier.
func (p *process) EndRegion(id uint32) error {
	p.mu.Lock()
	for at := range p.calls {
		if uint64(at)>>44&0xffff == uint64(id) {
			delete(p.calls, at)
		}
	}
	p.mu.Unlock()
	return errors.Join(p.control(remote.Hello{Type: remote.MsgRegionEnd, Region: id}), p.mem.Unmap(id), p.mem.End(id))
}

// Close implements remotetest.Carrier: an orderly exit.
func (p *process) Close() error {
	p.halt()
	err := p.control(remote.Hello{Type: remote.MsgRegionEnd})
	late := time.Now().Add(time.Minute) // for all of them
	for at, c := range p.calls {
		if _, _, e := c.Wait(max(time.Until(late), time.Second)); e != nil {
			err = errors.Join(err, fmt.Errorf("loan %#x: %w", at, e))
		}
	}
	return errors.Join(err, p.file.Close(), p.mem.Close())
}

func caller(pid uint32) fuse.Caller { return fuse.Caller{Pid: pid} }
