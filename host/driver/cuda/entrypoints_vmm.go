package cuda

// vmmEntryPoints are the driver functions of virtual memory, pools and sharing.
type vmmEntryPoints struct {
	cuMemGetAllocationGranularity, cuMemAddressReserve, cuMemAddressFree      entry
	cuMemCreate, cuMemRelease, cuMemMap, cuMemUnmap, cuMemSetAccess           entry
	cuMemExportToShareableHandle, cuMemImportFromShareableHandle              entry
	cuMemGetAllocationPropertiesFromHandle                                    entry
	cuIpcGetMemHandle, cuIpcOpenMemHandle_v2, cuIpcCloseMemHandle             entry
	cuIpcGetEventHandle, cuIpcOpenEventHandle                                 entry
	cuMemPoolCreate, cuMemPoolDestroy, cuMemPoolSetAccess, cuMemPoolGetAccess entry
	cuMemAllocFromPoolAsync, cuMemPoolExportToShareableHandle                 entry
	cuMemPoolImportFromShareableHandle, cuMemPoolExportPointer                entry
	cuMemPoolImportPointer                                                    entry
}
