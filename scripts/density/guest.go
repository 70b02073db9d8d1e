package main

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/workertest"
	"causeway/remote"
	"causeway/remote/remotetest"
	"causeway/virtio/fs/fstest"
	"causeway/virtio/virtiotest"
)

const pageSize = 4096

// vm is a VM with one vGPU: its memory, its kernel's mount.
type vm struct {
	*fstest.Guest

	mu       sync.Mutex
	sessions map[*session]struct{}
	idle     []*session // memory that sessions have left
	stop     chan struct{}
	renewing sync.WaitGroup
}

// connect boots a VM on a vhost-user socket. Its memory is touched only where sessions use it.
func connect(socket string, sessions int) (*vm, error) {
	g, err := fstest.Connect(socket, fstest.Options{Memory: uint64(8+2*sessions) << 20})
	if err != nil {
		return nil, err
	}
	v := &vm{Guest: g, sessions: map[*session]struct{}{}, stop: make(chan struct{})}
	v.renewing.Go(v.routineRenew)
	return v, nil
}

// close is QEMU's end.
func (v *vm) close() error {
	close(v.stop)
	v.renewing.Wait()
	return v.Kill()
}

// session is a process of the guest that opened its control file. It implements remotetest.Carrier.
type session struct {
	vm   *vm
	file *fstest.File
	mem  []byte              // region 0
	all  []virtiotest.Buffer // its pages
	word virtiotest.Buffer   // for what is written to the file
	page virtiotest.Buffer   // for what is read
	cuda *workertest.Guest

	mu     sync.Mutex
	loan   *fstest.Call
	gone   chan struct{}
	ending atomic.Bool
}

var _ remotetest.Carrier = (*session)(nil)

// memory takes what an ended session left, or fresh guest memory.
func (v *vm) memory() *session {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := &session{}
	if n := len(v.idle); n > 0 {
		s, v.idle = v.idle[n-1], v.idle[:n-1]
		clear(s.mem)
	} else {
		gpa, b := v.Mem.Alloc(uint64(remote.Region0Size), pageSize)
		s.mem = b
		for off := 0; off < len(b); off += pageSize {
			s.all = append(s.all, virtiotest.Buffer{GPA: gpa + uint64(off), Bytes: b[off:][:pageSize:pageSize]})
		}
		for _, one := range []*virtiotest.Buffer{&s.word, &s.page} {
			one.GPA, one.Bytes = v.Mem.Alloc(pageSize, pageSize)
		}
	}
	return &session{vm: v, mem: s.mem, all: s.all, word: s.word, page: s.page, gone: make(chan struct{})}
}

// start opens a session as cuInit does, and makes a context.
func (v *vm) start(pid uint32) (*session, error) {
	s := v.memory()
	if err := s.open(pid); err != nil {
		if s.file != nil {
			err = errors.Join(err, s.Close())
		}
		return nil, err
	}
	return s, nil
}

func (s *session) open(pid uint32) (err error) {
	if s.file, err = s.vm.Open(syscall.O_RDWR, fuse.Caller{Pid: pid}, "session"); err != nil {
		return err
	}
	remotetest.Prepare(s.mem)
	if err := s.control(remote.Hello{Type: remote.MsgHello, Va: remotetest.Address(s.mem), Size: remote.Region0Size}); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	if err := s.renew(); err != nil {
		return err
	}
	s.vm.mu.Lock()
	s.vm.sessions[s] = struct{}{}
	s.vm.mu.Unlock()
	if err := s.control(remote.Hello{Type: remote.MsgStart}); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	s.cuda = workertest.New(remotetest.New(s.mem, s))
	if _, err := s.cuda.Init(); err != nil {
		return err
	}
	const ctx = 16 // the first number that is nobody's
	if res, err := s.cuda.Call(0, &wire.PrimaryCtxRetainArgs{Ctx: ctx}, nil); err != nil || res != cuda.Success {
		return fmt.Errorf("context: %v, %w", res, err)
	}
	return nil
}

func (s *session) control(h remote.Hello) error {
	return s.write(remote.FormatHello(h, ""), int64(remote.FileControl))
}

func (s *session) write(b []byte, off int64) error {
	w := virtiotest.Buffer{GPA: s.word.GPA, Bytes: s.word.Bytes[:len(b)]}
	copy(w.Bytes, b)
	c, err := s.file.Write(0, off, []virtiotest.Buffer{w})
	if err != nil {
		return err
	}
	_, errno, err := c.Wait(time.Minute)
	if errno != 0 {
		return errno
	}
	return err
}

// renew lends region 0, anew if it is lent.
func (s *session) renew() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending.Load() {
		return nil
	}
	old := s.loan
	c, err := s.file.Read(0, int64(remote.FileLoan), s.all)
	if err != nil {
		return fmt.Errorf("loan: %w", err)
	}
	s.loan = c
	if old != nil {
		_, _, err = old.Wait(time.Minute)
	}
	return err
}

// routineRenew renews all loans once a second, as the library's loan threads do.
func (v *vm) routineRenew() {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-v.stop:
			return
		case <-t.C:
		}
		v.mu.Lock()
		list := make([]*session, 0, len(v.sessions))
		for s := range v.sessions {
			list = append(list, s)
		}
		v.mu.Unlock()
		for _, s := range list {
			_ = s.renew() // a session that is lost tells who uses it
		}
	}
}

// Ring implements remotetest.Carrier.
func (s *session) Ring() { _ = s.write(make([]byte, 8), int64(remote.FileDoorbell)) }

// Sleep implements remotetest.Carrier.
func (s *session) Sleep(slot uint32, _ *atomic.Uint32) {
	c, err := s.file.Read(0, int64(remote.FileWait|uint64(slot)<<12), []virtiotest.Buffer{s.page})
	if err == nil {
		var errno syscall.Errno
		if _, errno, err = c.Wait(time.Minute); errno == 0 && err == nil {
			return
		}
	}
	select {
	case <-s.gone:
	default:
		close(s.gone)
	}
}

// Gone implements remotetest.Carrier.
func (s *session) Gone() <-chan struct{} { return s.gone }

var errOneRegion = errors.New("these sessions have one region")

// AddRegion implements remotetest.Carrier.
func (s *session) AddRegion(uint32, int) ([]byte, uint64, error) { return nil, 0, errOneRegion }

// EndRegion implements remotetest.Carrier.
func (s *session) EndRegion(uint32) error { return errOneRegion }

// Close implements remotetest.Carrier: the process exits. The worker ends soon after.
func (s *session) Close() error {
	s.vm.mu.Lock()
	delete(s.vm.sessions, s)
	s.vm.mu.Unlock()
	s.ending.Store(true)
	s.mu.Lock()
	loan := s.loan
	s.mu.Unlock()
	var err error
	if loan != nil {
		err = s.control(remote.Hello{Type: remote.MsgRegionEnd})
		_, _, e := loan.Wait(time.Minute)
		err = errors.Join(err, e)
	}
	err = errors.Join(err, s.file.Close())
	s.vm.mu.Lock()
	s.vm.idle = append(s.vm.idle, s)
	s.vm.mu.Unlock()
	return err
}
