package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"causeway/host/inventory"
)

// Limits of the NVML socket.
const (
	nvmlAtOnce = 64
	nvmlLimit  = 15 * time.Second
)

// listenNVML answers the management libraries of guest processes on a socket of its own: each connection gets the state of the
// vGPU and is closed. No worker starts for it.
func (h *hub) listenNVML(ctx context.Context, path string) error {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("socket for nvidia-smi: %w", err)
	}
	client := inventoryClient(h.cfg)
	context.AfterFunc(ctx, func() {
		_ = ln.Close()
		client.Close()
	})
	desk := &inventory.Desk{Memory: h.memory, Workers: h.inventoryWorkers, Machine: client.Read}
	go h.routineNVML(ctx, ln, desk)
	return nil
}

func (h *hub) routineNVML(ctx context.Context, ln *net.UnixListener, desk *inventory.Desk) {
	room := make(chan struct{}, nvmlAtOnce)
	for {
		c, err := ln.Accept()
		if err != nil {
			if ctx.Err() == nil {
				h.log.Error("accept a question of nvidia-smi", "error", err)
			}
			return
		}
		room <- struct{}{}
		go func() {
			defer func() { <-room }()
			defer c.Close()
			ctx, cancel := context.WithTimeout(ctx, nvmlLimit)
			defer cancel()
			b, err := desk.Answer(ctx)
			if err != nil {
				h.log.Warn("NVML of guests is limited to names", "error", err)
				return // nothing: the guest asks its CUDA library for the names
			}
			_ = c.SetWriteDeadline(time.Now().Add(nvmlLimit))
			_, _ = c.Write(b) // who has gone wants no answer
		}()
	}
}

func (h *hub) inventoryWorkers() []inventory.Worker {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []inventory.Worker
	for p := range h.workers {
		list = append(list, p)
	}
	return list
}
