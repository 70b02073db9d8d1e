package cuda

// arrayEntryPoints are the driver functions of arrays, textures, links and green contexts.
type arrayEntryPoints struct {
	cuTensorMapEncodeTiled, cuTensorMapEncodeIm2col, cuTensorMapEncodeIm2colWide entry
	cuTensorMapReplaceAddress                                                    entry
	cuLinkCreate_v2, cuLinkAddData_v2, cuLinkComplete, cuLinkDestroy             entry
	cuArray3DCreate_v2, cuArray3DGetDescriptor_v2, cuArrayDestroy                entry
	cuArrayGetPlane, cuArrayGetSparseProperties, cuArrayGetMemoryRequirements    entry
	cuMipmappedArrayCreate, cuMipmappedArrayDestroy, cuMipmappedArrayGetLevel    entry
	cuMipmappedArrayGetSparseProperties, cuMipmappedArrayGetMemoryRequirements   entry
	cuMemMapArrayAsync                                                           entry
	cuTexObjectCreate, cuTexObjectDestroy, cuSurfObjectCreate                    entry
	cuSurfObjectDestroy                                                          entry
	cuTexRefCreate, cuTexRefDestroy, cuModuleGetTexRef, cuModuleGetSurfRef       entry
	cuTexRefSetArray, cuTexRefSetMipmappedArray, cuTexRefSetAddress_v2           entry
	cuTexRefSetAddress2D_v3, cuTexRefSetFormat, cuTexRefSetAddressMode           entry
	cuTexRefSetFilterMode, cuTexRefSetMipmapFilterMode                           entry
	cuTexRefSetMaxAnisotropy, cuTexRefSetBorderColor, cuTexRefSetFlags           entry
	cuTexRefSetMipmapLevelBias, cuTexRefSetMipmapLevelClamp                      entry
	cuTexRefGetAddress_v2, cuTexRefGetFormat, cuTexRefGetAddressMode             entry
	cuTexRefGetFilterMode, cuTexRefGetMipmapFilterMode                           entry
	cuTexRefGetMaxAnisotropy, cuTexRefGetBorderColor, cuTexRefGetFlags           entry
	cuTexRefGetMipmapLevelBias, cuTexRefGetMipmapLevelClamp                      entry
	cuSurfRefSetArray                                                            entry
	cuStreamSetAttribute, cuStreamGetAttribute, cuStreamCopyAttributes           entry
	cuCtxRecordEvent, cuCtxWaitEvent, cuCtxGetExecAffinity                       entry
	cuFlushGPUDirectRDMAWrites, cuDeviceGetExecAffinitySupport                   entry
	cuDeviceGetHostAtomicCapabilities, cuDeviceGetP2PAtomicCapabilities          entry
	cuDeviceGetTexture1DLinearMaxWidth                                           entry
	cuDeviceGetDevResource, cuCtxGetDevResource, cuGreenCtxGetDevResource        entry
	cuDevSmResourceSplitByCount, cuDevResourceGenerateDesc                       entry
	cuGreenCtxCreate, cuGreenCtxDestroy, cuCtxFromGreenCtx                       entry
	cuGreenCtxStreamCreate, cuGreenCtxRecordEvent, cuGreenCtxWaitEvent           entry
	cuGreenCtxGetId                                                              entry
}
