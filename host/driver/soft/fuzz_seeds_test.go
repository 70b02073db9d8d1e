package soft

import (
	"encoding/binary"

	"causeway/cuda/wire"
)

// u32s are words one behind the other, as records carry lists.
func u32s(words ...uint32) (b []byte) {
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

// token is that of the nth offer to a sharingHost.
func token(n byte) []byte { return append([]byte{n}, make([]byte, 31)...) }

// graphSeeds are guests that build, capture and replay graphs.
func graphSeeds() map[string][]wire.Args {
	const ctx, mod, fn, st, ev, first = 16, 17, 18, 19, 20, arenaBase
	const graph, exec, kernel, fill, copied, alloc, freed, child, clone, node = 30, 31, 40, 41, 42, 43, 44, 32, 33, 50
	kern := wire.KernelNode{Func: fn, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Size: 8}
	set := wire.MemsetNode{Dst: first, Pitch: 64, Value: 7, Element: 1, Width: 64, Height: 1}
	src, dst := wire.MemcpyOperand{Type: 2, Ptr: first, Pitch: 64, Height: 1}, wire.MemcpyOperand{Type: 2, Ptr: first + 64, Pitch: 64, Height: 1}
	body := wire.MemcpyNode{Width: 64, Height: 1, Depth: 1}
	mem, of := wire.AllocNode{Size: 4096}, wire.ChildNode{Graph: clone}
	props := append(u32s(1, 0, 1, 0), make([]byte, 72)...) // CUmemPoolProps
	kernelParams := append(kern.Append(nil), u32s(uint32(first&0xffffffff), uint32(first>>32))...)
	record := wire.EventNode{Event: ev}
	host := wire.HostNode{ID: 5}
	batch := wire.BatchNode{Count: 1}
	operation := append(u32s(2, 0, uint32(first&0xffffffff), uint32(first>>32), 1), make([]byte, 28)...)
	cond := wire.ConditionalNode{Handle: 1, Size: 1}
	return map[string][]wire.Args{
		"graphs": {
			&wire.MemAllocArgs{Size: 4096}, &wire.ModuleLoadArgs{Module: mod, Image: []byte(testPTX)},
			&wire.ModuleGetFunctionArgs{Func: fn, Module: mod, Name: []byte("bump")}, &wire.EventCreateArgs{Event: ev},
			&wire.GraphCreateArgs{Graph: graph}, &wire.GraphAddNodeArgs{Graph: graph, Node: kernel, Params: kernelParams},
			&wire.GraphAddNodeArgs{Graph: graph, Node: fill, Type: wire.NodeMemset, Params: set.Append(nil)},
			&wire.GraphAddNodeArgs{Graph: graph, Node: copied, Type: wire.NodeMemcpy, Deps: u32s(fill), Params: body.Append(dst.Append(src.Append(nil)))},
			&wire.GraphAddNodeArgs{Graph: graph, Node: node, Type: wire.NodeEventRecord, Deps: u32s(copied, kernel), Params: record.Append(nil)},
			&wire.GraphAddNodeArgs{Graph: graph, Node: node + 1, Type: wire.NodeBatchMemOp, Params: append(batch.Append(nil), operation...)},
			&wire.GraphSetEdgesArgs{Graph: graph, Before: u32s(kernel), After: u32s(copied)}, &wire.GraphNodeGetParamsArgs{Node: kernel},
			&wire.GraphListArgs{What: wire.GraphListEdges, Graph: graph}, &wire.GraphCloneArgs{Graph: clone, Original: graph},
			&wire.GraphInstantiateArgs{Exec: exec, Graph: graph}, &wire.GraphLaunchArgs{Exec: exec, Stream: 1},
			&wire.GraphExecNodeSetParamsArgs{Exec: exec, Node: fill, Type: wire.NodeMemset, Params: set.Append(nil)},
			&wire.GraphNodeSetEnabledArgs{Exec: exec, Node: fill}, &wire.GraphExecUpdateArgs{Exec: exec, Graph: clone},
			&wire.GraphLaunchArgs{Exec: exec, Stream: 1}, &wire.CtxSynchronizeArgs{}, &wire.GraphDebugDotArgs{Graph: graph},
			&wire.GraphDestroyNodeArgs{Node: copied}, &wire.GraphDestroyArgs{Graph: graph}, &wire.GraphExecDestroyArgs{Exec: exec},
		},
		"graph-memory": {
			&wire.GraphCreateArgs{Graph: graph}, &wire.GraphCreateArgs{Graph: clone},
			&wire.GraphAddNodeArgs{Graph: graph, Node: alloc, Type: wire.NodeMemAlloc, Params: append(mem.Append(nil), props...)},
			&wire.GraphAddNodeArgs{Graph: graph, Node: freed, Type: wire.NodeMemFree, Deps: u32s(alloc), Params: (&wire.FreeNode{Ptr: first}).Append(nil)},
			&wire.GraphAddNodeArgs{Graph: graph, Node: child, Type: wire.NodeGraph, Params: of.Append(nil)},
			&wire.GraphAddNodeArgs{Graph: graph, Node: node, Type: wire.NodeHost, Params: host.Append(nil)},
			&wire.GraphConditionalCreateArgs{Graph: clone, Value: 1, Flags: 1},
			&wire.GraphAddNodeArgs{Graph: clone, Node: node + 1, Type: wire.NodeConditional, Params: append(cond.Append(nil), u32s(60)...)},
			&wire.UserObjectCreateArgs{Object: 70, ID: 9, Count: 2, Flags: 1}, &wire.GraphUserObjectArgs{Graph: graph, Object: 70, Count: 1},
			&wire.GraphInstantiateArgs{Exec: exec, Graph: graph}, &wire.GraphUploadArgs{Exec: exec, Stream: 1}, &wire.GraphLaunchArgs{Exec: exec, Stream: 1},
			&wire.CtxSynchronizeArgs{}, &wire.GraphMemGetAttributeArgs{}, &wire.GraphMemTrimArgs{}, &wire.UserObjectCountArgs{Object: 70, Release: 1, Count: 1},
		},
		"captures": {
			&wire.MemAllocArgs{Size: 4096}, &wire.StreamCreateArgs{Stream: st, Flags: 1}, &wire.EventCreateArgs{Event: ev},
			&wire.StreamBeginCaptureArgs{Stream: st}, &wire.MemsetArgs{Dst: first, Element: 1, Width: 64, Height: 1, Stream: st},
			&wire.EventRecordArgs{Event: ev, Stream: st}, &wire.StreamWaitEventArgs{Stream: 2, Event: ev}, &wire.LaunchHostFuncArgs{Stream: st, ID: 3},
			&wire.StreamCaptureInfoArgs{Stream: st, Want: wire.CaptureWantGraph, Fresh: graph, Names: u32s(51, 52)},
			&wire.StreamUpdateCaptureArgs{Stream: st, Deps: u32s(51)}, &wire.ThreadCaptureModeArgs{Mode: 2}, &wire.MemAllocAsyncArgs{Size: 64, Stream: st},
			&wire.StreamEndCaptureArgs{Stream: st, Fresh: graph}, &wire.GraphInstantiateArgs{Exec: exec, Graph: graph}, &wire.GraphLaunchArgs{Exec: exec, Stream: st},
			&wire.StreamSynchronizeArgs{Stream: st},
		},
	}
}

// memorySeeds are guests with arrays, textures, virtual memory, pools, links and attributes.
func memorySeeds() map[string][]wire.Args {
	const first, array, plane, mipmap, tex, surf, ref, link, pool, st = arenaBase, 30, 31, 32, 33, 34, 35, 36, 37, 38
	const resv, mem, mapping, mib = 40, 41, 42, 1 << 20
	texture := append(u32s(1, 1, 1, 0, 1), make([]byte, 84)...)
	return map[string][]wire.Args{
		"arrays": {
			&wire.MemAllocArgs{Size: 4096}, &wire.ArrayCreateArgs{Array: array, Width: 32, Height: 8, Format: 3, Channels: 1, Flags: 2},
			&wire.Memcpy3DArgs{Src: first, SrcPitch: 128, SrcHeight: 8, DstKind: wire.OperandArray, Dst: array, Width: 128, Height: 8, Depth: 1, Stream: 1},
			&wire.MipmapCreateArgs{Mipmap: mipmap, Width: 16, Height: 4, Format: 3, Channels: 1, Levels: 3},
			&wire.MipmapGetLevelArgs{Level: plane, Mipmap: mipmap, Index: 1}, &wire.ArrayGetMemoryRequirementsArgs{Array: array},
			&wire.TexObjectCreateArgs{Tex: tex, Array: array, Resource: make([]byte, 144), Texture: texture},
			&wire.SurfObjectCreateArgs{Surf: surf, Array: array, Resource: make([]byte, 144)}, &wire.TexRefCreateArgs{Texref: ref},
			&wire.TexRefSetArgs{Texref: ref, What: wire.TexRefArray, Array: array, A: 1}, &wire.TexRefGetArgs{Texref: ref, What: wire.TexRefFormat},
			&wire.TexRefSetArgs{Texref: ref, What: wire.TexRefBorder, Data: make([]byte, 16)}, &wire.TexObjectDestroyArgs{Tex: tex},
			&wire.SurfObjectDestroyArgs{Surf: surf}, &wire.ArrayDestroyArgs{Array: array}, &wire.MipmapDestroyArgs{Mipmap: mipmap},
		},
		"virtual-memory": {
			&wire.MemGetAllocationGranularityArgs{}, &wire.MemAddressReserveArgs{Resv: resv, Size: 8 * mib}, &wire.MemCreateArgs{Memhandle: mem, Size: 2 * mib, Handles: 1},
			&wire.MemMapArgs{Mapping: mapping, Resv: resv, Memhandle: mem, Ptr: windowBase, Size: 2 * mib}, &wire.MemSetAccessArgs{Mapping: mapping, Flags: 3},
			&wire.MemsetArgs{Dst: windowBase, Element: 4, Width: 512, Height: 1, Stream: 1}, &wire.CtxSynchronizeArgs{},
			&wire.PointerGetAttributeArgs{Attr: 2, Ptr: windowBase}, &wire.MemExportArgs{Memhandle: mem}, &wire.MemImportArgs{Memhandle: mem + 10, Token: token(1)},
			&wire.MemUnmapArgs{Mapping: mapping}, &wire.MemReleaseArgs{Memhandle: mem}, &wire.MemAddressFreeArgs{Resv: resv},
		},
		"pools": {
			&wire.PoolCreateArgs{Pool: pool, Handles: 1}, &wire.PoolSetAccessArgs{Pool: pool, Flags: 3}, &wire.PoolGetAccessArgs{Pool: pool},
			&wire.MemAllocFromPoolArgs{Size: 4096, Pool: pool, Stream: 1}, &wire.PoolExportArgs{Pool: pool}, &wire.PoolImportArgs{Pool: pool + 10, Token: token(1)},
			&wire.PoolExportPointerArgs{Ptr: first}, &wire.PoolImportPointerArgs{Pool: pool + 10, Token: token(2)}, &wire.MemFreeAsyncArgs{Ptr: first, Stream: 1},
			&wire.PoolDestroyArgs{Pool: pool},
		},
		"other-processes": {
			&wire.MemAllocArgs{Size: 4096}, &wire.IpcGetMemHandleArgs{Ptr: first}, &wire.IpcOpenMemHandleArgs{Flags: 1, Token: token(1)},
			&wire.IpcCloseMemHandleArgs{Ptr: first}, &wire.EventCreateArgs{Event: st, Flags: 6}, &wire.IpcGetEventHandleArgs{Event: st},
			&wire.IpcOpenEventHandleArgs{Event: st + 20, Token: token(2)}, &wire.EventRecordArgs{Event: st, Stream: 1},
			&wire.StreamWaitEventArgs{Stream: 2, Event: st}, &wire.EventSynchronizeArgs{Event: st}, &wire.MemFreeArgs{Ptr: first},
		},
		"links": {
			&wire.LinkCreateArgs{Link: link, InfoCap: 100, ErrCap: 100}, &wire.LinkAddArgs{Link: link, Type: 1, Name: []byte("a"), Input: []byte(testPTX)},
			&wire.LinkAddArgs{Link: link, Type: 1, Name: []byte("b"), Input: []byte(linkedPTX)}, &wire.LinkCompleteArgs{Link: link}, &wire.LinkDestroyArgs{Link: link},
		},
		"attributes": {
			&wire.StreamCreateArgs{Stream: st}, &wire.StreamSetAttributeArgs{Target: st, Attr: 3, Value: append([]byte{1}, make([]byte, 63)...)}, &wire.StreamGetAttributeArgs{Stream: st, Attr: 8},
			&wire.StreamCopyAttributesArgs{Target: st, Source: 1}, &wire.CtxGetExecAffinityArgs{}, &wire.DeviceAskArgs{What: wire.AskTexture1DWidth, A: 3, B: 1},
			&wire.DeviceAskArgs{What: wire.AskHostAtomics, List: u32s(1, 2)}, &wire.LaunchHostFuncArgs{Stream: st, ID: 7, Status: 1}, &wire.StreamSynchronizeArgs{Stream: st},
		},
	}
}

const linkedPTX = `.version 6.4
.target sm_75
.address_size 64
.visible .func twice() { ret; }
`
