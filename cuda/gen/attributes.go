package main

import "causeway/cuda/idl"

// adjustment is a device attribute that the guest is told otherwise than by the host's driver,
// because it would promise what a call then refuses.
type adjustment struct {
	name     string // without CU_DEVICE_ATTRIBUTE_
	value    int
	unmapped bool   // only over a carrier that cannot map the guest's memory
	call     string // what answers CUDA_ERROR_NOT_SUPPORTED
	reason   string
}

const (
	rdma     = "no other device of the guest's reaches the GPU's memory, which lies in the host"
	hostPool = "the driver's host memory is the worker's; the guest's own is pinned by cuMemHostAlloc"
	mapping  = "the carrier does not share memory"
	faults   = "the carrier does not share memory; 1 where the guest has userfaultfd"
	ordinary = "kernels reach memory that is allocated for it or registered"
	graphics = "a vGPU has no graphics to share a context with"
)

var adjustments = []adjustment{
	{"CAN_MAP_HOST_MEMORY", 0, true, "cuMemHostGetDevicePointer", mapping},
	{"CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM", 0, true, "cuMemHostGetDevicePointer", mapping},
	{"MANAGED_MEMORY", 0, true, "cuMemAllocManaged", faults},
	{"CONCURRENT_MANAGED_ACCESS", 0, true, "", mapping},
	{"HOST_NATIVE_ATOMIC_SUPPORTED", 0, true, "", mapping},
	{"READ_ONLY_HOST_REGISTER_SUPPORTED", 0, true, "cuMemHostGetDevicePointer", mapping},
	{"PAGEABLE_MEMORY_ACCESS", 0, false, "", ordinary},
	{"PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES", 0, false, "", ordinary},
	{"DIRECT_MANAGED_MEM_ACCESS_FROM_HOST", 0, false, "", "the processor does not reach the GPU's memory: managed memory comes to it"},
	{"COOPERATIVE_MULTI_DEVICE_LAUNCH", 0, false, "cuLaunchCooperativeKernelMultiDevice", "CUDA 13 removed it"},
	{"CAN_FLUSH_REMOTE_WRITES", 0, false, "CU_STREAM_WAIT_VALUE_FLUSH, CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES", rdma},
	{"HANDLE_TYPE_WIN32_HANDLE_SUPPORTED", 0, false, "", "not on this system"},
	{"HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED", 0, false, "", "not on this system"},
	{"GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED", 0, false, "", rdma},
	{"TIMELINE_SEMAPHORE_INTEROP_SUPPORTED", 0, false, "cuImportExternalSemaphore", "semaphores of graphics interfaces, which a vGPU has none of"},
	{"GPU_DIRECT_RDMA_SUPPORTED", 0, false, "CU_POINTER_ATTRIBUTE_P2P_TOKENS", rdma},
	{"GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS", 0, false, "cuFlushGPUDirectRDMAWrites", rdma},
	{"GPU_DIRECT_RDMA_WRITES_ORDERING", 0, false, "", rdma},
	{"MEMPOOL_SUPPORTED_HANDLE_TYPES", 1, false, "", "descriptors only: fabric handles name memory to other nodes, which the vGPU's policy does not know"},
	{"DMA_BUF_SUPPORTED", 0, false, "cuMemGetHandleForAddressRange", "a descriptor of the host's kernel means nothing to the guest's; " + rdma},
	{"HANDLE_TYPE_FABRIC_SUPPORTED", 0, false, "cuMemCreate with CU_MEM_HANDLE_TYPE_FABRIC", "fabric handles name memory to other nodes, which the vGPU's policy does not know"},
	{"UNIFIED_FUNCTION_POINTERS", 0, false, "cuLibraryGetUnifiedFunction", "no page of the guest is code of the GPU"},
	{"MULTICAST_SUPPORTED", 0, false, "cuMulticastCreate", "multicast objects live in switches that all tenants of a host share"},
	{"D3D12_CIG_SUPPORTED", 0, false, "cuCtxCreate_v4 with a shared graphics context", graphics},
	{"VULKAN_CIG_SUPPORTED", 0, false, "cuCtxCreate_v4 with a shared graphics context", graphics},
	{"MEM_DECOMPRESS_ALGORITHM_MASK", 0, false, "cuMemBatchDecompressAsync", "not forwarded; GPUs of compute capability 10 have it"},
	{"MEM_DECOMPRESS_MAXIMUM_LENGTH", 0, false, "cuMemBatchDecompressAsync", "not forwarded; GPUs of compute capability 10 have it"},
	{"HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", 0, false, "cuMemCreate on the host", hostPool},
	{"HOST_NUMA_MEMORY_POOLS_SUPPORTED", 0, false, "cuMemPoolCreate on the host", hostPool},
	{"HOST_NUMA_MULTINODE_IPC_SUPPORTED", 0, false, "cuMemPoolCreate on the host", hostPool},
	{"HOST_MEMORY_POOLS_SUPPORTED", 0, false, "cuMemPoolCreate on the host", hostPool},
	{"HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", 0, false, "cuMemCreate on the host", hostPool},
	{"HOST_ALLOC_DMA_BUF_SUPPORTED", 0, false, "cuMemGetHandleForAddressRange", "guest memory cannot be exported"},
}

// cAttributes is guest/libcuda/gen/attributes.h: the rows of device.c's table.
func cAttributes(w *writer, _ *idl.File) {
	w.f("/* %s */", notice)
	w.f("/* Attributes that would promise what calls then refuse: ADJUST(attribute, value, unmapped). unmapped: only where the carrier")
	w.f(" * cannot map. docs/COVERAGE.md says why. */")
	for _, a := range adjustments {
		unmapped := 0
		if a.unmapped {
			unmapped = 1
		}
		w.f("ADJUST(CU_DEVICE_ATTRIBUTE_%s, %d, %d)", a.name, a.value, unmapped)
	}
}

// attributeCoverage is the section about them.
func attributeCoverage(w *writer) {
	w.f("## Device attributes\n")
	w.f("`cuDeviceGetAttribute` answers as the host's driver does, but for what no call here keeps. `guest/tests/promises.cu` holds attributes")
	w.f("and calls against each other.\n")
	w.f("| attribute | answers | because | refused then |\n| --- | --- | --- | --- |")
	w.f("| `CONCURRENT_MANAGED_ACCESS`, `HOST_NATIVE_ATOMIC_SUPPORTED` | 0 unless tried | processor and GPU take turns with managed memory, or the GPU reaches " +
		"the guest's over its link. Where the driver says that atomic operations across it work, the worker tries them when it starts; over PCIe they do not: of 4.2 million updates " +
		"of a processor 3.8 million were lost beside an H200's | |")
	for _, a := range adjustments {
		answer, call := "0", ""
		if a.value != 0 {
			answer = "1"
		}
		if a.unmapped {
			answer += " over TCP"
		}
		if a.call != "" {
			call = a.call
		}
		w.f("| `%s` | %s | %s | %s |", a.name, answer, a.reason, call)
	}
	w.f("")
}
