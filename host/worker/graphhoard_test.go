package worker_test

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/workertest"
)

// TestHostMemoryOfGraphs: what a guest has a driver keep of graphs is in its budget: nodes that it
// adds or captures, copies of graphs, what is executable of them, and user objects. Each ends
// there, and is free again when it has ended.
func TestHostMemoryOfGraphs(t *testing.T) {
	cfg := unixConfig
	cfg.GPU, cfg.HostMemory, cfg.LogLevel = "soft", 4<<20, "ERROR"
	const graph, node = 100, 1000
	start := func(t *testing.T) *workertest.Guest {
		g := hoarder(t, cfg)
		call(t, g, cuda.Success, &wire.GraphCreateArgs{Graph: graph}, nil)
		return g
	}
	empty := func(i int) wire.Args {
		return &wire.GraphAddNodeArgs{Graph: graph, Node: uint32(node + i), Type: wire.NodeEmpty}
	}
	fill := func(t *testing.T, g *workertest.Guest, n int) {
		for i := range n {
			call(t, g, cuda.Success, empty(i), nil)
		}
	}
	between := func(t *testing.T, what string, n, least, most int) {
		t.Helper()
		if t.Logf("%d %s in 4 MiB", n, what); n < least || n > most {
			t.Errorf("%d %s in 4 MiB, not %d to %d", n, what, least, most)
		}
	}
	free := func(t *testing.T, g *workertest.Guest) { // the graph, and with it all that was booked
		call(t, g, cuda.Success, &wire.GraphDestroyArgs{Graph: graph}, nil)
		call(t, g, cuda.Success, &wire.GraphCreateArgs{Graph: graph}, nil)
		fill(t, g, 1000)
	}
	t.Run("nodes", func(t *testing.T) {
		g := start(t)
		between(t, "nodes", until(t, g, 1<<14, empty), 1000, 1<<13)
		call(t, g, cuda.ErrorOutOfMemory, &wire.GraphDebugDotArgs{Graph: graph}, nil)
		free(t, g)
		call(t, g, cuda.Success, &wire.GraphDebugDotArgs{Graph: graph}, nil)
	})
	t.Run("nodes that end", func(t *testing.T) {
		g := start(t)
		for i := range 1 << 13 {
			call(t, g, cuda.Success, empty(i), nil)
			call(t, g, cuda.Success, &wire.GraphDestroyNodeArgs{Node: uint32(node + i)}, nil)
		}
		fill(t, g, 100)
		call(t, g, cuda.Success, &wire.GraphCreateArgs{Graph: graph + 1}, nil)
		for i := range 200 {
			call(t, g, cuda.Success, &wire.GraphAddNodeArgs{Graph: graph + 1, Node: uint32(10000 + i), Type: wire.NodeGraph, Params: (&wire.ChildNode{Graph: graph}).Append(nil)}, nil)
			call(t, g, cuda.Success, &wire.GraphDestroyNodeArgs{Node: uint32(10000 + i)}, nil)
		}
	})
	t.Run("long parameters", func(t *testing.T) {
		g := start(t)
		long := make([]byte, 32<<10)
		n := until(t, g, 1000, func(i int) wire.Args {
			return &wire.GraphAddNodeArgs{Graph: graph, Node: uint32(node + i), Type: wire.NodeHost, Params: long}
		})
		between(t, "nodes with 32 KiB", n, 20, 128)
		free(t, g)
	})
	t.Run("parameters that grow", func(t *testing.T) {
		g := start(t)
		short, long := make([]byte, wire.HostNodeSize), make([]byte, 32<<10)
		for i := range 1000 {
			call(t, g, cuda.Success, &wire.GraphAddNodeArgs{Graph: graph, Node: uint32(node + i), Type: wire.NodeHost, Params: short}, nil)
		}
		n := until(t, g, 1000, func(i int) wire.Args {
			return &wire.GraphNodeSetParamsArgs{Node: uint32(node + i), Type: wire.NodeHost, Params: long}
		})
		between(t, "nodes that get 32 KiB", n, 20, 128)
		free(t, g)
	})
	t.Run("clones", func(t *testing.T) {
		g := start(t)
		fill(t, g, 100)
		between(t, "clones of 100 nodes", until(t, g, 1000, func(i int) wire.Args {
			return &wire.GraphCloneArgs{Graph: uint32(10000 + i), Original: graph}
		}), 10, 80)
		call(t, g, cuda.Success, &wire.GraphDestroyArgs{Graph: 10000}, nil)
		call(t, g, cuda.Success, &wire.GraphCloneArgs{Graph: 20000, Original: graph}, nil)
	})
	t.Run("children", func(t *testing.T) {
		g := start(t)
		fill(t, g, 100)
		call(t, g, cuda.Success, &wire.GraphCreateArgs{Graph: graph + 1}, nil)
		between(t, "copies within another", until(t, g, 1000, func(i int) wire.Args {
			return &wire.GraphAddNodeArgs{Graph: graph + 1, Node: uint32(10000 + i), Type: wire.NodeGraph, Params: (&wire.ChildNode{Graph: graph}).Append(nil)}
		}), 10, 80)
		call(t, g, cuda.Success, &wire.GraphDestroyArgs{Graph: graph + 1}, nil)
		call(t, g, cuda.Success, &wire.GraphCloneArgs{Graph: 20000, Original: graph}, nil)
	})
	t.Run("executable", func(t *testing.T) {
		g := start(t)
		fill(t, g, 100)
		between(t, "executable graphs of 100 nodes", until(t, g, 1000, func(i int) wire.Args {
			return &wire.GraphInstantiateArgs{Exec: uint32(10000 + i), Graph: graph}
		}), 3, 40)
		call(t, g, cuda.Success, &wire.GraphExecDestroyArgs{Exec: 10000}, nil)
		call(t, g, cuda.Success, &wire.GraphInstantiateArgs{Exec: 20000, Graph: graph}, nil)
	})
	const stream = 50
	capture := func(i int) wire.Args { return &wire.LaunchHostFuncArgs{Stream: stream, ID: uint64(i)} }
	t.Run("captured", func(t *testing.T) {
		g := start(t)
		call(t, g, cuda.Success, &wire.StreamCreateArgs{Stream: stream, Flags: 1}, nil)
		call(t, g, cuda.Success, &wire.StreamBeginCaptureArgs{Stream: stream, Mode: cuda.CaptureModeRelaxed}, nil)
		between(t, "captured calls", until(t, g, 1<<14, capture), 1000, 1<<13)
		var r wire.StreamEndCaptureReply
		call(t, g, cuda.Success, &wire.StreamEndCaptureArgs{Stream: stream, Fresh: graph + 1}, &r)
		call(t, g, cuda.ErrorOutOfMemory, &wire.GraphCloneArgs{Graph: graph + 2, Original: graph + 1}, nil)
		call(t, g, cuda.Success, &wire.GraphDestroyArgs{Graph: graph + 1}, nil)
		free(t, g)
	})
	t.Run("captured in vain", func(t *testing.T) {
		g := start(t)
		call(t, g, cuda.Success, &wire.StreamCreateArgs{Stream: stream, Flags: 1}, nil)
		for range 20 {
			call(t, g, cuda.Success, &wire.StreamBeginCaptureArgs{Stream: stream, Mode: cuda.CaptureModeRelaxed}, nil)
			for i := range 1000 {
				call(t, g, cuda.Success, capture(i), nil)
			}
			call(t, g, cuda.Success, &wire.StreamEndCaptureArgs{Stream: stream}, new(wire.StreamEndCaptureReply))
		}
		free(t, g)
	})
	t.Run("user objects", func(t *testing.T) {
		g := start(t)
		between(t, "user objects", until(t, g, 1<<15, func(i int) wire.Args {
			return &wire.UserObjectCreateArgs{Object: uint32(10000 + i), ID: uint64(i + 1), Count: 1, Flags: 1}
		}), 1000, 1<<14)
		for i := range 200 {
			call(t, g, cuda.Success, &wire.UserObjectCountArgs{Object: uint32(10000 + i), Release: 1, Count: 1}, nil)
		}
		// Their room is free when the driver has come to their destructors, behind all that is
		// queued.
		for i := range 10 {
			awaitRoom(t, g, empty(i))
		}
		awaitRoom(t, g, &wire.EventCreateArgs{Event: 1 << 21}) // which the last request has again
		call(t, g, cuda.Success, &wire.EventDestroyArgs{Event: 1 << 21}, nil)
	})
	t.Run("streams", func(t *testing.T) {
		g := start(t)
		between(t, "streams", until(t, g, 1000, func(i int) wire.Args {
			return &wire.StreamCreateArgs{Stream: uint32(10000 + i), Flags: 1}
		}), 50, 255)
		call(t, g, cuda.Success, &wire.StreamDestroyArgs{Stream: 10000}, nil)
		call(t, g, cuda.Success, &wire.StreamCreateArgs{Stream: 20000, Flags: 1}, nil)
		call(t, g, cuda.Success, &wire.StreamDestroyArgs{Stream: 10001}, nil)
	})
	t.Run("user objects of one number", func(t *testing.T) {
		g := start(t)
		fill(t, g, 10)
		between(t, "user objects", until(t, g, 1<<15, func(i int) wire.Args {
			return &wire.UserObjectCreateArgs{Object: 10000, ID: uint64(i + 1), Count: 1, Flags: 1}
		}), 1000, 1<<14)
		call(t, g, cuda.Success, &wire.GraphDestroyArgs{Graph: graph}, nil)
	})
}
