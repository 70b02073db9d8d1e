// Package qmptest is a QEMU for tests, at the other end of a QMP socket: it has memory, a PCI bus
// with root ports, chardevs and devices, and speaks as QEMU 10 does. It runs goroutines of its own
// until Close.
package qmptest

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"testing"
)

// QEMU is the fake. Its fields are set before Serve.
type QEMU struct {
	Private bool     // guest memory is not shared
	Ports   []string // root ports
	// Refuse holds commands that fail, with QEMU's text.
	Refuse map[string]string
	Deaf   bool // the guest does not let go of devices
	// Silent takes connections and greets nobody, as a QEMU whose monitor is taken.
	Silent bool
	// State is what query-status says; "": running.
	State string
	// Migration holds what query-migrate says of a migration, one status each time; the last stays.
	Migration []string
	// Answer, if it has a command, is sent in place of what is right.
	Answer map[string]string

	ln    net.Listener
	ended sync.WaitGroup

	mu       sync.Mutex
	chardevs map[string]bool
	devices  map[string]string // port by id
	calls    []string
}

// Serve listens at a path until the test ends.
func (q *QEMU) Serve(t testing.TB, path string) {
	t.Helper()
	q.chardevs, q.devices = map[string]bool{}, map[string]string{}
	var err error
	if q.ln, err = net.Listen("unix", path); err != nil {
		t.Fatal(err)
	}
	q.ended.Go(func() {
		for {
			c, err := q.ln.Accept()
			if err != nil {
				return
			}
			q.ended.Go(func() { q.talk(c) })
		}
	})
	t.Cleanup(func() {
		_ = q.ln.Close()
		q.ended.Wait()
	})
}

// Has says what the VM has: ids of chardevs and devices, and the commands that changed something.
func (q *QEMU) Has() (chardevs, devices int, calls []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.chardevs), len(q.devices), append([]string(nil), q.calls...)
}

type command struct {
	Execute   string `json:"execute"`
	Arguments struct {
		ID      string `json:"id"`
		Driver  string `json:"driver"`
		Chardev string `json:"chardev"`
		Bus     string `json:"bus"`
		Tag     string `json:"tag"`
		Queue   int    `json:"queue-size"`
		URI     string `json:"uri"`
	} `json:"arguments"`
}

func (q *QEMU) talk(c net.Conn) {
	defer c.Close()
	if !q.Silent {
		fmt.Fprintln(c, `{"QMP": {"version": {"qemu": {"micro": 2, "minor": 0, "major": 10}, "package": ""}, "capabilities": ["oob"]}}`)
	}
	dec := json.NewDecoder(bufio.NewReader(c))
	for {
		var cmd command
		if dec.Decode(&cmd) != nil {
			return
		}
		if q.Silent {
			continue
		}
		answer, event := q.execute(&cmd)
		if text, ok := q.Answer[cmd.Execute]; ok {
			answer = text
		}
		fmt.Fprintln(c, answer)
		if event != "" {
			fmt.Fprintln(c, event)
		}
	}
}

func refuse(text string) string {
	b, _ := json.Marshal(map[string]any{"error": map[string]string{"class": "GenericError", "desc": text}})
	return string(b)
}

func returns(v any) string {
	b, _ := json.Marshal(map[string]any{"return": v})
	return string(b)
}

type object = map[string]any

func (q *QEMU) execute(c *command) (answer, event string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if text, ok := q.Refuse[c.Execute]; ok {
		return refuse(text), ""
	}
	a := &c.Arguments
	switch c.Execute {
	case "qmp_capabilities":
	case "query-memdev":
		return returns([]object{{"id": "mem", "share": !q.Private, "size": 1 << 30}}), ""
	case "query-pci":
		return returns([]object{{"bus": 0, "devices": q.busLocked()}}), ""
	case "qom-list":
		list := []object{}
		for id := range q.devices {
			list = append(list, object{"name": id, "type": "child<vhost-user-fs-pci>"})
		}
		return returns(list), ""
	case "query-status":
		return returns(object{"status": cmp.Or(q.State, "running")}), ""
	case "query-migrate":
		status := q.Migration[0]
		if len(q.Migration) > 1 {
			q.Migration = q.Migration[1:]
		}
		return returns(object{"status": status, "error-desc": "as the test says", "ram": object{"total": 100, "remaining": 40}}), ""
	default:
		return q.changeLocked(c.Execute, a.ID, c)
	}
	return returns(object{}), ""
}

func (q *QEMU) busLocked() []object {
	list := []object{{"qdev_id": "", "slot": 0}}
	for _, p := range q.Ports {
		var behind []object
		for id, at := range q.devices {
			if at == p {
				behind = append(behind, object{"qdev_id": id})
			}
		}
		bridge := object{"bus": object{}}
		if behind != nil {
			bridge["devices"] = behind
		}
		list = append(list, object{"qdev_id": p, "pci_bridge": bridge})
	}
	return list
}

func (q *QEMU) changeLocked(what, id string, c *command) (answer, event string) {
	q.calls = append(q.calls, what)
	a := &c.Arguments
	switch what {
	case "chardev-add":
		if q.chardevs[id] {
			return refuse("Chardev with id '" + id + "' already exists"), ""
		}
		q.chardevs[id] = true
	case "chardev-remove":
		if !q.chardevs[id] || q.devices[id] != "" {
			return refuse("Chardev '" + id + "' is busy"), ""
		}
		delete(q.chardevs, id)
	case "device_add":
		if a.Driver != "vhost-user-fs-pci" || !q.chardevs[a.Chardev] || a.Bus == "" || a.Tag == "" || a.Queue != 1024 {
			return refuse("wrong device"), ""
		}
		q.devices[id] = a.Bus
	case "device_del":
		if q.devices[id] == "" {
			return refuse("Device '" + id + "' not found"), ""
		}
		if !q.Deaf {
			delete(q.devices, id)
			event = fmt.Sprintf(`{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "DEVICE_DELETED", "data": {"device": %q, "path": "/machine/peripheral/x"}}`, id)
		}
	case "migrate-set-capabilities", "migrate-set-parameters":
	case "migrate":
		if a.URI == "" {
			return refuse("no URI"), ""
		}
	case "migrate_cancel":
		q.Migration = []string{"cancelling", "cancelled"}
	default:
		return refuse("The command " + what + " has not been found"), ""
	}
	return returns(object{}), event
}
