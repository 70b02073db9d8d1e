package cuda

// entryPoints are the driver functions that sessions use, each field named exactly as libcuda exports it.
type entryPoints struct {
	graphEntryPoints
	vmmEntryPoints
	arrayEntryPoints
	hostEntryPoints

	cuInit, cuDriverGetVersion, cuGetExportTable                                                              entry
	cuDeviceGet, cuDeviceGetCount, cuDeviceGetName, cuDeviceGetUuid, cuDeviceGetUuid_v2                       entry
	cuDeviceTotalMem_v2, cuDeviceGetAttribute, cuDeviceGetPCIBusId                                            entry
	cuDeviceCanAccessPeer, cuDeviceGetP2PAttribute, cuDeviceGetDefaultMemPool                                 entry
	cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset_v2                        entry
	cuDevicePrimaryCtxSetFlags_v2, cuDevicePrimaryCtxGetState                                                 entry
	cuCtxCreate_v2, cuCtxDestroy_v2, cuCtxSetCurrent, cuCtxSynchronize, cuCtxGetLimit, cuCtxSetLimit          entry
	cuCtxSetCacheConfig, cuCtxResetPersistingL2Cache, cuCtxEnablePeerAccess, cuCtxDisablePeerAccess           entry
	cuCtxGetStreamPriorityRange                                                                               entry
	cuModuleLoadDataEx, cuModuleUnload, cuModuleGetFunction, cuModuleGetGlobal_v2                             entry
	cuModuleGetFunctionCount, cuModuleEnumerateFunctions                                                      entry
	cuLibraryLoadData, cuLibraryUnload, cuLibraryGetKernel, cuLibraryGetModule, cuLibraryGetGlobal            entry
	cuLibraryGetManaged, cuLibraryGetKernelCount, cuLibraryEnumerateKernels                                   entry
	cuKernelGetFunction, cuKernelGetAttribute, cuKernelSetAttribute, cuKernelGetParamInfo, cuKernelGetName    entry
	cuKernelSetCacheConfig                                                                                    entry
	cuFuncGetAttribute, cuFuncSetAttribute, cuFuncSetCacheConfig, cuFuncGetModule, cuFuncGetParamInfo         entry
	cuFuncGetName, cuFuncLoad                                                                                 entry
	cuLaunchKernel, cuLaunchKernelEx, cuLaunchCooperativeKernel                                               entry
	cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, cuOccupancyAvailableDynamicSMemPerBlock             entry
	cuOccupancyMaxActiveClusters, cuOccupancyMaxPotentialClusterSize                                          entry
	cuMemGetInfo_v2, cuMemAlloc_v2, cuMemAllocPitch_v2, cuMemFree_v2, cuMemAllocAsync, cuMemFreeAsync         entry
	cuMemHostAlloc, cuMemFreeHost, cuMemHostRegister_v2, cuMemHostUnregister                                  entry
	cuMemHostGetDevicePointer_v2                                                                              entry
	cuMemcpyAsync, cuMemcpyHtoDAsync_v2, cuMemcpyDtoHAsync_v2                                                 entry
	cuMemcpy3DAsync_v2, cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2                                             entry
	cuMemsetD8Async, cuMemsetD16Async, cuMemsetD32Async                                                       entry
	cuMemsetD2D8Async, cuMemsetD2D16Async, cuMemsetD2D32Async                                                 entry
	cuPointerGetAttribute, cuMemPoolGetAttribute, cuMemPoolSetAttribute, cuMemPoolTrimTo                      entry
	cuStreamCreateWithPriority, cuStreamDestroy_v2, cuStreamSynchronize, cuStreamQuery, cuStreamWaitEvent     entry
	cuStreamWriteValue32_v2, cuStreamWriteValue64_v2, cuStreamWaitValue32_v2, cuStreamWaitValue64_v2          entry
	cuEventCreate, cuEventDestroy_v2, cuEventRecord, cuEventRecordWithFlags, cuEventQuery, cuEventSynchronize entry
	cuEventElapsedTime_v2, cuEventElapsedTime                                                                 entry
}
