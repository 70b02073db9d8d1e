package daemontest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/daemon/process"
	sizes "causeway/host/limit"
	"causeway/host/schedule"
)

// Environment variables of the fake device process. Tests set them through the configuration's
// devices.environment.
const (
	// FailEnv: it says this on stderr and ends with status 1 before it is ready.
	FailEnv = "FAKE_DEVICE_FAIL"
	// NoSchedulerEnv: the scheduler ends at once.
	NoSchedulerEnv = "FAKE_NO_SCHEDULER"
	// DelayEnv: it is ready after this time.
	DelayEnv = "FAKE_DEVICE_DELAY"
	// WaitEnv names a file: it is ready once that is there.
	WaitEnv = "FAKE_DEVICE_WAIT"
	// VersionEnv is its version.
	VersionEnv = "FAKE_DEVICE_VERSION"
	// StubbornEnv: nothing but SIGKILL ends it.
	StubbornEnv = "FAKE_DEVICE_STUBBORN"
	// UUIDEnv is the GPU that it says it has.
	UUIDEnv = "FAKE_DEVICE_UUID"
	// FillEnv names a file that it writes until the disk is full.
	FillEnv = "FAKE_DEVICE_FILL"
	// StaysEnv: a migration of its VM is under way that will fail, for this reason.
	StaysEnv = "FAKE_DEVICE_STAYS"
	// CalledOffEnv names a file that gets a line for each migration that is called off; without it
	// none is.
	CalledOffEnv = "FAKE_CALLED_OFF"
	// HoldEnv names a file: while it is there nobody is told that no host may take over the lease
	// any more.
	HoldEnv = "FAKE_DEVICE_HOLD"
	// HoldRelayEnv names a file: while it is there it does not go on with another lease, nor
	// answers.
	HoldRelayEnv = "FAKE_DEVICE_HOLD_RELAY"
	// CountEnv names a file that gets a line for each start.
	CountEnv = "FAKE_DEVICE_COUNT"
)

// Main is called first by TestMain. If the program was started as a device process or a scheduler,
// it is one, and does not return.
func Main() {
	if len(os.Args) < 2 {
		return
	}
	var err error
	switch os.Args[1] {
	case "device":
		err = runDevice(os.Args[2:])
	case "scheduler":
		err = runScheduler(os.Args[2:])
	case "hook":
		err = appendLine(os.Getenv(CalledOffEnv))
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "causeway:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// device is a device process without a GPU and without VMs.
type device struct {
	mu     sync.Mutex
	status api.Status
	room   api.RoomStatus
	lease  string
	ended  chan struct{}
	once   sync.Once
}

func runDevice(args []string) error {
	var socket, control, memory, hostMemory string
	var d device
	var share, limit, sessions, users uint
	f := flag.NewFlagSet("device", flag.ContinueOnError)
	f.StringVar(&socket, "socket", "", "")
	f.StringVar(&control, "control", "", "")
	f.StringVar(&memory, "memory", "", "")
	f.StringVar(&hostMemory, "host-memory", "", "")
	f.UintVar(&users, "user-sessions", 0, "")
	f.UintVar(&share, "share", 100, "")
	f.UintVar(&limit, "cap", 0, "")
	f.UintVar(&sessions, "sessions", 0, "")
	for _, name := range []string{"vm", "name", "gpu", "warm", "owner", "scheduler", "sandbox", "ioctls", "rdma", "copy-connections", "rdma-queue-pairs", "rdma-partition", "cgroup", "cgroup-memory", "cgroup-memory-high", "cgroup-cpu", "cgroup-weight", "cgroup-processes", "suspend-to"} {
		f.String(name, "", "")
	}
	f.Bool("verbose", false, "")
	f.Bool("kernels-reach-worker", false, "")
	f.Bool("linked-gpus", false, "")
	f.Bool("migratable", false, "")
	f.Bool("programs", false, "")
	swap := f.Bool("swap", false, "")
	f.StringVar(&d.lease, "lease", "", "")
	relay := f.String("relay", "", "")
	held := f.Bool("held", false, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *held {
		if err := process.AwaitBegin(context.Background()); err != nil {
			return err
		}
	}
	for name := os.Getenv(WaitEnv); name != ""; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(name); err == nil {
			break
		}
	}
	if name := os.Getenv(CountEnv); name != "" {
		if err := appendLine(name); err != nil {
			return err
		}
	}
	if name := os.Getenv(FillEnv); name != "" {
		Fill(name)
	}
	if text := os.Getenv(FailEnv); text != "" {
		return errors.New(text)
	}
	pause, _ := time.ParseDuration(os.Getenv(DelayEnv))
	time.Sleep(pause)
	d.ended = make(chan struct{})
	d.status = api.Status{
		Version: os.Getenv(VersionEnv), PID: os.Getpid(), Started: time.Now(), UUID: os.Getenv(UUIDEnv),
		Limits: api.Limits{Share: uint32(share), Cap: uint32(limit), Sessions: uint32(sessions), UserSessions: uint32(users)}, Sessions: []api.Session{},
	}
	var err error
	if memory != "" {
		d.status.Limits.Memory, err = sizes.ParseSize(memory)
	}
	if err == nil && hostMemory != "" {
		d.status.Limits.HostMemory, err = sizes.ParseSize(hostMemory)
	}
	if err != nil {
		return err
	}
	d.goesBy(*relay)
	if d.room.Limit = d.status.Limits.Memory; *swap {
		d.room.Room = 1
	}
	return d.serve(socket, control)
}

// Fill writes a file until the disk is full.
func Fill(name string) {
	f, err := os.Create(name)
	if err != nil {
		return
	}
	defer f.Close()
	for b := make([]byte, 512); err == nil; {
		_, err = f.Write(b)
	}
}

func appendLine(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, os.Getpid())
	return errors.Join(err, f.Close())
}

func (d *device) serve(socket, control string) error {
	vhost, err := listen(socket)
	if err != nil {
		return err
	}
	defer vhost.Close()
	ln, err := listen(control)
	if err != nil {
		return err
	}
	defer ln.Close()
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	stubborn := os.Getenv(StubbornEnv) != ""
	go func() {
		for range term {
			if !stubborn {
				d.end()
			}
		}
	}()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		_ = json.NewEncoder(w).Encode(d.status)
	})
	mux.HandleFunc("GET /v1/stays", func(w http.ResponseWriter, r *http.Request) {
		if why := os.Getenv(StaysEnv); why != "" && r.URL.Query().Get("after") == "0" {
			_ = json.NewEncoder(w).Encode(api.Stays{Number: 1, Why: why})
			return
		}
		<-r.Context().Done()
	})
	if d.lease != "" {
		go d.serveLease(vhost)
	}
	mux.HandleFunc("PUT /v1/upstream", told(d, showUpstream))
	mux.HandleFunc("PUT /v1/handover", d.handedOver())
	mux.HandleFunc("PUT /v1/relay", d.otherLease())
	mux.HandleFunc("PUT /v1/limits", d.setLimits)
	mux.HandleFunc("POST /v1/move", d.move)
	mux.HandleFunc("POST /v1/divert", d.divert)
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, _ *http.Request) {
		if !stubborn {
			d.end()
		}
	})
	d.serveRoom(mux)
	// Of the migration that is under way; each one is told of, also if nobody asked between two.
	told := false
	mux.HandleFunc("PUT /fake", func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		_ = json.NewDecoder(r.Body).Decode(&d.status)
		told = told && d.status.Migrating
	})
	mux.HandleFunc("POST /v1/arrive", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if c, err := api.Switch(w, r); err == nil { // it says what it hears
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	})
	mux.HandleFunc("GET /v1/departs", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			d.mu.Lock()
			departs := d.status.Migrating && !told
			if departs && !d.status.Runs { // a test that does not say how the VM is has heard
				d.status.Migrating = false
			}
			told = d.status.Migrating
			d.mu.Unlock()
			if departs {
				_ = json.NewEncoder(w).Encode(api.Departs{Departs: true})
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	mux.HandleFunc("POST /v1/copy", func(w http.ResponseWriter, r *http.Request) {
		var how api.Copying
		_ = json.NewDecoder(r.Body).Decode(&how)
		_, _ = io.Copy(io.Discard, r.Body)
		c, err := api.Switch(w, r)
		if err != nil {
			return
		}
		defer c.Close()
		if how.Along { // the first says all
			_, _ = io.Copy(io.Discard, c)
			return
		}
		text := []byte("memory")
		_, _ = c.Write(text)
		n, _ := io.ReadFull(c, text)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.status.Copied += uint64(n)
	})
	mux.HandleFunc("POST /say", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(os.Stderr, r.Body) })
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(ln) }()
	<-d.ended
	return nil
}

// setLimits refuses a memory limit of 13 MiB, for tests of what is refused.
func (d *device) setLimits(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var c api.Change
	err := json.NewDecoder(r.Body).Decode(&c)
	now := c.On(d.status.Limits)
	if err != nil || now.Memory == 13<<20 {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(api.Error{Text: "13 MiB are too few"})
		return
	}
	d.status.Limits = now
	_ = json.NewEncoder(w).Encode(now)
}

// move refuses to leave a GPU with a session whose program is called "stays", for tests of what is
// refused.
func (d *device) move(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var c api.Relocation
	err := json.NewDecoder(r.Body).Decode(&c)
	if err != nil || len(d.status.Sessions) > 0 && d.status.Sessions[0].Program == "stays" {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(api.Error{Text: "a program stays"})
		return
	}
	d.status.UUID = c.GPU
	_ = json.NewEncoder(w).Encode(api.Relocated{UUID: c.GPU, Sessions: len(d.status.Sessions), Nanos: 1})
}

func (d *device) end() { d.once.Do(func() { close(d.ended) }) }

// listen makes the folder, too, as a device process does.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	_ = os.Remove(path)
	return net.Listen("unix", path)
}

func runScheduler(args []string) error {
	if len(args) != 2 || args[0] != "--socket" {
		return fmt.Errorf("scheduler %q", args)
	}
	if text := os.Getenv(FailEnv); text != "" {
		return errors.New(text)
	}
	if os.Getenv(NoSchedulerEnv) != "" {
		return errors.New("no scheduler here")
	}
	ln, err := schedule.Listen(args[1])
	if err != nil {
		return err
	}
	term, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return (&schedule.Server{Log: slog.New(slog.DiscardHandler)}).Serve(term, ln)
}
