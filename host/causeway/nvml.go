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

// listenNVML answers the management libraries of guest processes on a socket of its own: each
// connection gets the state of the vGPU and is closed. No worker starts for it.
func (s *server) listenNVML(ctx context.Context, path string) error {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("socket for nvidia-smi: %w", err)
	}
	client := inventoryClient(s.cfg)
	context.AfterFunc(ctx, func() {
		_ = ln.Close()
		client.Close()
	})
	inv := &inventory.Server{Memory: s.memory, Workers: s.inventoryWorkers, Machine: client.Read}
	go s.routineNVML(ctx, ln, inv)
	return nil
}

func (s *server) routineNVML(ctx context.Context, ln *net.UnixListener, inv *inventory.Server) {
	room := make(chan struct{}, nvmlAtOnce)
	for {
		c, err := ln.Accept()
		if err != nil {
			if ctx.Err() == nil {
				s.log.Error("accept a question of nvidia-smi", "error", err)
			}
			return
		}
		room <- struct{}{}
		go func() {
			defer func() { <-room }()
			defer c.Close()
			ctx, cancel := context.WithTimeout(ctx, nvmlLimit)
			defer cancel()
			b, err := inv.Answer(ctx)
			if err != nil {
				s.log.Warn("NVML of guests is limited to names", "error", err)
				return // nothing: the guest asks its CUDA library for the names
			}
			_ = c.SetWriteDeadline(time.Now().Add(nvmlLimit))
			_, _ = c.Write(b) // who has gone wants no answer
		}()
	}
}

func (s *server) inventoryWorkers() []inventory.Worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []inventory.Worker
	for p := range s.workers {
		list = append(list, p)
	}
	return list
}
