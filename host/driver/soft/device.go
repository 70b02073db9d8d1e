package soft

import (
	"fmt"
	"runtime"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// What this GPU is. It accepts PTX for compute capability 9.0 and below; the other numbers are
// limits that it keeps.
const (
	capability       = 90
	driverVersion    = 13000
	maxPTXVersion    = 9 // major
	warpSize         = 32
	maxBlockThreads  = 1024
	maxBlockZ        = 64
	maxGridX         = 1<<31 - 1
	maxGridYZ        = 65535
	sharedDefault    = 48 << 10  // shared memory of a block, bytes
	sharedOptIn      = 227 << 10 // the same after FuncAttrMaxDynamicSharedSizeBytes
	sharedPerSM      = 228 << 10
	threadsPerSM     = 2048
	blocksPerSM      = 16 // blocks that a core keeps started at once
	registersPerSM   = 65536
	maxParamBytes    = 32764
	pitchAlignment   = 512
	maxPitch         = 1<<31 - 1
	constantBank     = 64 << 10
	clockKHz         = 1_000_000 // %clock counts nanoseconds
	pciDomain        = 0xca50    // no bus has it
	priorityLeast    = 0
	priorityGreatest = -1 // a hint, as the API says: all ready work runs at once
)

// gpu is one device. It does not change.
type gpu struct {
	index  int // on the host
	name   string
	uuid   [16]byte
	memory uint64 // physical, or the limit when the session opened
	size   uint64 // physical
	cores  int
}

func newGPU(index int, o driver.Options) *gpu {
	g := &gpu{index: index, name: "Causeway Software GPU", uuid: hostUUID(index), cores: o.Cores}
	if g.cores <= 0 {
		g.cores = runtime.GOMAXPROCS(0)
	}
	g.size = min(hostMemory()/2, arenaSize) &^ (1<<20 - 1)
	g.memory = g.size
	if o.MemoryLimit != 0 {
		g.memory = min(g.memory, o.MemoryLimit)
	}
	return g
}

func (g *gpu) uuidText() string {
	u := g.uuid
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

func (g *gpu) pciBusID() string { return fmt.Sprintf("%04x:%02x:%02x.0", pciDomain, 0, g.index) }

// info describes the device to the guest. mapped says that the worker can map guest memory.
func (g *gpu) info(mapped bool) *wire.DeviceInfo {
	d := &wire.DeviceInfo{
		UUID: g.uuid, UUIDV2: g.uuid, TotalMem: g.memory, AttrCount: cuda.DeviceAttrMax, Compute: capability,
	}
	copy(d.Name[:], g.name)
	copy(d.PCIBusID[:], g.pciBusID())
	for a := 1; a < cuda.DeviceAttrMax; a++ {
		d.AttrValid[a/8] |= 1 << (a % 8) // those that are not set below are 0: not there
	}
	set := func(values map[int]int32) {
		for a, v := range values {
			d.Attrs[a] = v
		}
	}
	set(g.limits())
	set(features)
	set(arrayLimits)
	if mapped {
		set(mappedFeatures)
	}
	return d
}

// limits are the attributes that are quantities.
func (g *gpu) limits() map[int]int32 {
	return map[int]int32{
		cuda.DeviceAttrMaxThreadsPerBlock:               maxBlockThreads,
		cuda.DeviceAttrMaxBlockDimX:                     maxBlockThreads,
		cuda.DeviceAttrMaxBlockDimY:                     maxBlockThreads,
		cuda.DeviceAttrMaxBlockDimZ:                     maxBlockZ,
		cuda.DeviceAttrMaxGridDimX:                      maxGridX,
		cuda.DeviceAttrMaxGridDimY:                      maxGridYZ,
		cuda.DeviceAttrMaxGridDimZ:                      maxGridYZ,
		cuda.DeviceAttrMaxSharedMemoryPerBlock:          sharedDefault,
		cuda.DeviceAttrMaxSharedMemoryPerBlockOptin:     sharedOptIn,
		cuda.DeviceAttrMaxSharedMemoryPerMultiprocessor: sharedPerSM,
		cuda.DeviceAttrTotalConstantMemory:              constantBank,
		cuda.DeviceAttrWarpSize:                         warpSize,
		cuda.DeviceAttrMaxPitch:                         maxPitch,
		cuda.DeviceAttrMaxRegistersPerBlock:             registersPerSM,
		cuda.DeviceAttrMaxRegistersPerMultiprocessor:    registersPerSM,
		cuda.DeviceAttrMaxThreadsPerMultiprocessor:      threadsPerSM,
		cuda.DeviceAttrMaxBlocksPerMultiprocessor:       blocksPerSM,
		cuda.DeviceAttrMultiprocessorCount:              int32(g.cores),
		cuda.DeviceAttrClockRate:                        clockKHz,
		cuda.DeviceAttrL2CacheSize:                      lastLevelCache(),
		cuda.DeviceAttrComputeCapabilityMajor:           capability / 10,
		cuda.DeviceAttrComputeCapabilityMinor:           capability % 10,
		cuda.DeviceAttrPCIDomainID:                      pciDomain,
		cuda.DeviceAttrPCIDeviceID:                      int32(g.index),
		cuda.DeviceAttrSingleToDoublePrecisionPerfRatio: 1,
		cuda.DeviceAttrMemSyncDomainCount:               1,
		cuda.DeviceAttrHostNUMAID:                       -1,
		cuda.DeviceAttrNUMAID:                           -1,
		cuda.DeviceAttrAsyncEngineCount:                 2,
	}
}

// features are there always.
var features = map[int]int32{
	cuda.DeviceAttrGPUOverlap: 1,
	// Over any carrier, at least for copies.
	cuda.DeviceAttrHostRegisterSupported:                  1,
	cuda.DeviceAttrConcurrentKernels:                      1,
	cuda.DeviceAttrClusterLaunch:                          1,
	cuda.DeviceAttrUnifiedAddressing:                      1,
	cuda.DeviceAttrStreamPrioritiesSupported:              1,
	cuda.DeviceAttrGlobalL1CacheSupported:                 1,
	cuda.DeviceAttrLocalL1CacheSupported:                  1,
	cuda.DeviceAttrComputePreemptionSupported:             1,
	cuda.DeviceAttrCooperativeLaunch:                      1,
	cuda.DeviceAttrMemoryPoolsSupported:                   1,
	cuda.DeviceAttrVirtualMemoryManagementSupported:       1,
	cuda.DeviceAttrHandleTypePosixFileDescriptorSupported: 1,
	cuda.DeviceAttrMempoolSupportedHandleTypes:            1,
	cuda.DeviceAttrIPCEventSupported:                      1,
	cuda.DeviceAttrCanUse64BitStreamMemOpsV1:              1,
	cuda.DeviceAttrCanUseStreamMemOpsV1:                   1,
	cuda.DeviceAttrCanUseStreamWaitValueNorV1:             1,
	cuda.DeviceAttrCanUse64BitStreamMemOps:                1,
	cuda.DeviceAttrCanUseStreamWaitValueNor:               1,
}

// mappedFeatures need a carrier that shares guest memory.
var mappedFeatures = map[int]int32{
	cuda.DeviceAttrCanMapHostMemory:                  1,
	cuda.DeviceAttrHostNativeAtomicSupported:         1,
	cuda.DeviceAttrReadOnlyHostRegisterSupported:     1,
	cuda.DeviceAttrCanUseHostPointerForRegisteredMem: 1,
	cuda.DeviceAttrManagedMemory:                     1,
	cuda.DeviceAttrConcurrentManagedAccess:           1,
}
