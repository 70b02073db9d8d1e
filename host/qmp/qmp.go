package qmp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
)

// Errors.
var (
	ErrExists   = errors.New("the VM has such a vGPU already")
	ErrNoVGPU   = errors.New("the VM has no such vGPU")
	ErrNoPort   = errors.New("no PCI root port is free for a device that is plugged in: start QEMU with -device pcie-root-port,id=rp1,chassis=1")
	ErrNoMemory = errors.New("guest memory is not shared with processes of the host: start QEMU with -object memory-backend-memfd,id=mem,size=SIZE,share=on -machine q35,memory-backend=mem")
	ErrGuest    = errors.New("the guest has not let go of the vGPU")
	// ErrNoQEMU says that nobody answers at a QMP socket.
	ErrNoQEMU = errors.New("no QEMU answers there: start it with -qmp unix:SOCKET,server=on,wait=off, and name that socket")
)

// Monitor is QEMU's monitor; go-qemu's SocketMonitor is one.
type Monitor interface {
	Run(command []byte) ([]byte, error)
	Events(context.Context) (<-chan qmp.Event, error)
	Disconnect() error
}

// Machine is a QEMU.
type Machine struct {
	mon     Monitor
	removed chan string // names of devices that are gone
	over    chan struct{}
}

// Dial connects to a QMP socket. The time bounds the connection and QEMU's greeting, which another
// client of the socket holds back.
func Dial(socket string, limit time.Duration) (*Machine, error) {
	mon, err := qmp.NewSocketMonitor("unix", socket, limit)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrNoQEMU, err)
	}
	done := make(chan error, 1)
	go func() { done <- mon.Connect() }()
	select {
	case err = <-done:
	case <-time.After(limit):
		err = errors.New("no greeting: does another program hold its QMP socket?")
	}
	if err != nil {
		// Disconnect of a monitor that never connected closes its socket, then waits for ever.
		go func() { _ = mon.Disconnect() }()
		return nil, fmt.Errorf("connect to QEMU at %s: %w", socket, err)
	}
	return New(mon)
}

// New makes a Machine of a connected monitor.
func New(mon Monitor) (*Machine, error) {
	events, err := mon.Events(context.Background())
	if err != nil {
		return nil, fmt.Errorf("events of QEMU: %w", err)
	}
	m := &Machine{mon: mon, removed: make(chan string, 16), over: make(chan struct{})}
	go m.routineEvents(events)
	return m, nil
}

// routineEvents passes on which devices are gone, and takes all other events, without which QEMU's
// answers would not be read.
func (m *Machine) routineEvents(events <-chan qmp.Event) {
	defer close(m.over)
	for e := range events {
		if name, _ := e.Data["device"].(string); e.Event == "DEVICE_DELETED" && name != "" {
			select {
			case m.removed <- name:
			default: // nobody waits
			}
		}
	}
}

// Close ends the connection.
func (m *Machine) Close() error {
	err := m.mon.Disconnect()
	<-m.over
	return err
}

// run executes a command and reads its answer into out, if that is not nil.
func (m *Machine) run(c qmp.Command, out any) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	answer, err := m.ask(b)
	if err != nil {
		return fmt.Errorf("QEMU refuses %s: %w", c.Execute, err)
	}
	if out == nil {
		return nil
	}
	var r struct {
		Return json.RawMessage `json:"return"`
	}
	if err := json.Unmarshal(answer, &r); err != nil {
		return fmt.Errorf("answer of QEMU to %s: %w", c.Execute, err)
	}
	if err := json.Unmarshal(r.Return, out); err != nil {
		return fmt.Errorf("answer of QEMU to %s: %w", c.Execute, err)
	}
	return nil
}

// runLimit bounds one command: a QEMU that is stuck answers none.
const runLimit = 20 * time.Second

// ask sends a command and waits for its answer. After an error by time the connection is of no use
// any more.
func (m *Machine) ask(command []byte) ([]byte, error) {
	type result struct {
		answer []byte
		err    error
	}
	done := make(chan result, 1)
	go func() {
		answer, err := m.mon.Run(command)
		done <- result{answer, err}
	}()
	select {
	case r := <-done:
		return r.answer, r.err
	case <-time.After(runLimit):
		return nil, errors.New("no answer")
	}
}

// id of QEMU's objects for a vGPU.
func id(name string) string {
	return "causeway-" + strings.NewReplacer(":", "-", "+", "-", "@", "-").Replace(name)
}

// Check says whether a vGPU can be plugged in, and where: the id of a free root port.
func (m *Machine) Check(name string) (port string, err error) {
	var memory []struct {
		Share bool   `json:"share"`
		ID    string `json:"id"`
	}
	if err := m.run(qmp.Command{Execute: "query-memdev"}, &memory); err != nil {
		return "", err
	}
	shared := len(memory) > 0
	for _, b := range memory {
		shared = shared && b.Share
	}
	if !shared {
		return "", ErrNoMemory
	}
	has, err := m.has(name)
	if err != nil {
		return "", err
	}
	if has {
		return "", fmt.Errorf("%w: %s: --name names another", ErrExists, name)
	}
	var buses []bus
	if err := m.run(qmp.Command{Execute: "query-pci"}, &buses); err != nil {
		return "", err
	}
	for _, b := range buses {
		if p := freePort(b.Devices); p != "" {
			return p, nil
		}
	}
	return "", ErrNoPort
}

// bus and device are what query-pci tells.
type bus struct {
	Devices []device `json:"devices"`
}

type device struct {
	ID     string `json:"qdev_id"`
	Bridge *struct {
		Devices []device `json:"devices"`
	} `json:"pci_bridge"`
}

// freePort is a named bridge without devices.
func freePort(list []device) string {
	for _, d := range list {
		if d.Bridge == nil {
			continue
		}
		if len(d.Bridge.Devices) == 0 && d.ID != "" {
			return d.ID
		}
		if p := freePort(d.Bridge.Devices); p != "" {
			return p
		}
	}
	return ""
}

// has says whether the VM has a vGPU.
func (m *Machine) has(name string) (bool, error) {
	var list []struct {
		Name string `json:"name"`
	}
	err := m.run(qmp.Command{Execute: "qom-list", Args: map[string]string{"path": "/machine/peripheral"}}, &list)
	if err != nil {
		return false, err
	}
	for _, p := range list {
		if p.Name == id(name) {
			return true, nil
		}
	}
	return false, nil
}

type object = map[string]any

func chardevAdd(name, socket string) qmp.Command {
	return qmp.Command{Execute: "chardev-add", Args: object{"id": id(name), "backend": object{"type": "socket", "data": object{
		"addr": object{"type": "unix", "data": object{"path": socket}}, "server": false}}}}
}

func deviceAdd(name, port string) qmp.Command {
	return qmp.Command{Execute: "device_add", Args: object{"driver": "vhost-user-fs-pci", "id": id(name), "chardev": id(name), "tag": name, "queue-size": 1024, "bus": port}}
}

// Commands are the lines that Attach sends.
func Commands(name, socket, port string) []string {
	var lines []string
	for _, c := range []qmp.Command{chardevAdd(name, socket), deviceAdd(name, port)} {
		b, _ := json.Marshal(c) // maps of text and numbers
		lines = append(lines, string(b))
	}
	return lines
}

// Attach plugs in a vGPU whose socket is served, at the port that Check found. After an error the
// VM is as before, unless it says otherwise.
func (m *Machine) Attach(name, socket, port string) error {
	if err := m.run(chardevAdd(name, socket), nil); err != nil {
		return err
	}
	err := m.run(deviceAdd(name, port), nil)
	if err == nil {
		return nil
	}
	if e := m.run(chardevRemove(name), nil); e != nil {
		return fmt.Errorf("%w; taking back the chardev failed too: %w", err, e)
	}
	return err
}

func chardevRemove(name string) qmp.Command {
	return qmp.Command{Execute: "chardev-remove", Args: object{"id": id(name)}}
}

// Detach asks the guest to let go of a vGPU, waits until it has, and removes what Attach added.
func (m *Machine) Detach(ctx context.Context, name string) error {
	has, err := m.has(name)
	if err != nil {
		return err
	}
	if !has {
		return fmt.Errorf("%w: %s", ErrNoVGPU, name)
	}
	if err := m.run(qmp.Command{Execute: "device_del", Args: object{"id": id(name)}}, nil); err != nil {
		return err
	}
	gone := []string{}
	for !slices.Contains(gone, id(name)) {
		select {
		case n := <-m.removed:
			gone = append(gone, n)
		case <-m.over:
			return errors.New("QEMU ended, or closed its QMP socket, before the vGPU was gone")
		case <-ctx.Done():
			return fmt.Errorf("%w: it has been asked, and the vGPU stays until it does. Is the guest up, and does its kernel support PCI hot-plug? (%w)", ErrGuest, ctx.Err())
		}
	}
	return m.run(chardevRemove(name), nil)
}
