package qmp_test

import (
	"bytes"
	"context"

	upstream "github.com/digitalocean/go-qemu/qmp"
)

// answers is a monitor that says the same whatever it is asked.
type answers struct{ memory, pci string }

func (a *answers) Run(command []byte) ([]byte, error) {
	switch {
	case bytes.Contains(command, []byte("query-memdev")):
		return []byte(a.memory), nil
	case bytes.Contains(command, []byte("query-pci")):
		return []byte(a.pci), nil
	}
	return []byte(`{"return": []}`), nil
}

func (a *answers) Events(context.Context) (<-chan upstream.Event, error) {
	events := make(chan upstream.Event)
	close(events)
	return events, nil
}

func (a *answers) Disconnect() error { return nil }
