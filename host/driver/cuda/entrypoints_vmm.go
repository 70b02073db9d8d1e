package cuda

// vmmEntryPoints are the driver functions of virtual memory, pools and sharing.
type vmmEntryPoints struct {
	cuMemGetAllocationGranularity, cuMemAddressReserve, cuMemAddressFree entry
	cuMemCreate, cuMemRelease, cuMemMap, cuMemUnmap, cuMemSetAccess      entry
}
