package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// mtu is the devices', and so what a packet has at most.
const mtu = 1500

// packets makes the devices and passes packets until SIGTERM.
func packets(args []string) error {
	var w weather
	f := flag.NewFlagSet("wire packets", flag.ContinueOnError)
	f.DurationVar(&w.delay, "delay", 0, "what each packet is under way for")
	f.DurationVar(&w.jitter, "jitter", 0, "by how much at most more; packets keep their order")
	f.Float64Var(&w.loss, "loss", 0, "the share of packets that are lost, 0 to 1")
	f.Float64Var(&w.late, "reorder", 0, "the share of packets that those behind them overtake")
	f.Float64Var(&w.twice, "duplicate", 0, "the share of packets that come twice")
	f.Int64Var(&w.rate, "rate", 0, "bytes a second; 0: as many as come")
	f.IntVar(&w.queue, "queue", 256<<10, "bytes that wait for --rate, behind which packets are lost")
	seed := f.Uint64("seed", 1, "of what happens by chance")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() != 2 {
		return errors.New("usage: wire packets [flags] PID PID")
	}
	var ends [2]*os.File
	for i, name := range []string{"wirea", "wireb"} {
		var err error
		if ends[i], err = device(f.Arg(i), name); err != nil {
			return fmt.Errorf("device %s: %w", name, err)
		}
	}
	there := newWay(w, rand.New(rand.NewPCG(*seed, 1)))
	back := newWay(w, rand.New(rand.NewPCG(*seed, 2)))
	go there.carry(ends[0], ends[1])
	go back.carry(ends[1], ends[0])
	fmt.Println("ready")
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGTERM, os.Interrupt)
	<-ended
	a, b := there.told(), back.told()
	fmt.Printf("packets %d lost %d overtaken %d twice %d full %d\n", a.passed+b.passed, a.lost+b.lost, a.late+b.late, a.twice+b.twice, a.full+b.full)
	return nil
}

// device makes a TUN device in the network namespace of a process. It goes when the file is closed.
func device(pid, name string) (*os.File, error) {
	if _, err := strconv.Atoi(pid); err != nil {
		return nil, err
	}
	type result struct {
		f   *os.File
		err error
	}
	done := make(chan result)
	go func() { // the thread stays in that namespace, and ends with this
		runtime.LockOSThread()
		f, err := deviceHere("/proc/"+pid+"/ns/net", name)
		done <- result{f, err}
	}()
	r := <-done
	return r.f, r.err
}

func deviceHere(space, name string) (*os.File, error) {
	ns, err := unix.Open(space, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(ns)
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// carry passes packets from one device to the other. A device that is not up takes none, which
// loses them.
func (w *way) carry(from, to *os.File) {
	go w.deliver(func(p []byte) { _, _ = to.Write(p) })
	b := make([]byte, mtu+64)
	for {
		n, err := from.Read(b)
		if err != nil {
			if errors.Is(err, os.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // it is not up yet
			continue
		}
		w.send(time.Now(), append([]byte(nil), b[:n]...))
	}
}
